"""The wall time of a recording: what of it is outside of ranges, for which threads and steps."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.build_tree import By, build_tree
from otel_recfn.batches.wall import Block, wall_time
from otel_recfn.model.batch import TrainingStep
from otel_recfn.model.columns import Track
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, make_event_id

BLOCK = Block(BASE_NS, BASE_NS + 100_000_000, MAIN_THREAD.native_id, "MainThread")
STEP = {"source": EventSource.STEP}
OWN = {"source": EventSource.RECORD_FUNCTION, "scope": RecordScope.USER_SCOPE}


def ran(name: str, start_ms: int, end_ms: int, **more: Any) -> dict[str, Any]:
    times = {"start_ns": BASE_NS + start_ms * 1_000_000, "end_ns": BASE_NS + end_ms * 1_000_000}
    return {"name": name, **times, **more}


def outside_ms(*rows: dict[str, Any], block: Block | None = BLOCK) -> dict[str, float]:
    wall = wall_time(make_batch(list(rows)), block)
    return {thread.name: thread.outside_ns / 1e6 for thread in wall.threads}


def test_ranges_count_once_and_those_of_the_program_count() -> None:
    inner = ran("aten::addmm", 12, 18)
    outer = ran("aten::linear", 10, 20)
    assert outside_ms(inner, outer, ran("load", 40, 70, **OWN)) == {"MainThread": 60}


@pytest.mark.parametrize("step", [STEP, OWN], ids=["step()", "of a schedule"])
def test_a_step_only_divides_time(step: dict[str, Any]) -> None:
    name = "train" if step is STEP else "ProfilerStep#7"
    wall = wall_time(
        make_batch([ran("aten::mm", 20, 30), ran(name, 10, 60, step_number=7, **step)]), BLOCK
    )
    (thread,) = wall.threads
    assert thread.outside_ns == 90_000_000
    assert [(each.wall_ns, each.outside_ns) for each in thread.steps] == [(50_000_000, 40_000_000)]
    assert thread.between_steps_ns == 50_000_000
    assert wall.sentences()[2].endswith(" 50.000ms outside PyTorch is in no step.")


def test_a_training_step_that_nothing_marks_is_told() -> None:
    batch = make_batch([ran("aten::mm", 20, 30)])
    step = TrainingStep(3, 1, 1, BASE_NS + 15_000_000, BASE_NS + 35_000_000, 0, 0)
    batch = batch.take(slice(None), steps=[step])
    (thread,) = wall_time(batch, BLOCK).threads
    assert [each[:3] for each in thread.steps] == [("ProfilerStep#3", 20_000_000, 10_000_000)]


def test_a_range_that_overlaps_others_is_no_work_of_its_thread() -> None:
    waits = ran("request", 0, 100, flags=EventFlag.ASYNC)
    assert outside_ms(ran("aten::mm", 20, 30), waits) == {"MainThread": 90}


def test_only_threads_that_worked_are_told() -> None:
    """A pool's thread that ran little may have waited; autograd's only works for others."""
    pool = Track(3, 3, 1003, 0, "pool-1")
    trainer = Track(4, 4, 1004, 0, "trainer")
    main_range = make_event_id(MAIN_THREAD.number, 1)
    assert outside_ms(
        ran("aten::mm", 0, 80),
        ran("MulBackward0", 0, 70, thread=WORKER_THREAD, parent=main_range),
        ran("aten::mm", 0, 49, thread=pool),
    ) == {"MainThread": 20}
    assert outside_ms(ran("aten::mm", 0, 80), ran("aten::mm", 0, 51, thread=pool)) == {
        "MainThread": 20,
        "pool-1": 49,
    }
    assert outside_ms(
        ran("aten::mm", 0, 80), ran("train", 0, 10, thread=trainer, step_number=0, **STEP)
    ) == {"MainThread": 20, "trainer": 100}


def test_a_thread_without_ranges_that_ran_the_block_is_told() -> None:
    assert outside_ms(ran("aten::mm", 0, 20, thread=WORKER_THREAD)) == {"MainThread": 100}


def test_without_a_block_the_wall_is_that_of_the_ranges() -> None:
    rows = [ran("aten::mm", 10, 20), ran("aten::mm", 40, 50)]
    assert outside_ms(*rows, block=None) == {"MainThread": 20}
    assert wall_time(make_batch(rows)).ns == 40_000_000
    assert wall_time(make_batch([])).threads == []


def test_what_was_lost_is_said_to_seem_outside() -> None:
    wall = wall_time(make_batch([ran("aten::mm", 10, 20)]), BLOCK, is_complete=False)
    assert wall.sentences() == [
        "Wall time: 100.000ms. Some ranges were lost: they count as outside PyTorch.",
        "MainThread: 10.0% recorded, 90.0% (90.000ms) outside PyTorch.",
    ]


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("name", ["aten::mm", "  aten::sum", "outside PyTorch", "aten::add"]),
        (
            "thread",
            ["MainThread 1", "  aten::mm", "    aten::sum", "  outside PyTorch", "  aten::add"],
        ),
    ],
)
def test_the_tree_has_a_row_for_it_among_its_siblings(by: By, rows: list[str]) -> None:
    mm = make_event_id(MAIN_THREAD.number, 2)
    batch = make_batch(
        [ran("aten::sum", 10, 20, parent=mm), ran("aten::mm", 10, 70), ran("aten::add", 90, 100)]
    )
    tree = build_tree(batch, by, wall=wall_time(batch, BLOCK))
    lines = tree.table().splitlines()[3:-1]
    assert [line[: line.index("%")].rsplit(None, 1)[0] for line in lines] == rows
    assert sum("outside" in path.name for path in tree) == 0
    assert any(line.startswith(rows[-1]) and " 10.00%" in line for line in lines)


def test_shares_of_a_table_are_of_the_wall_beside_torchs() -> None:
    from otel_recfn.batches.averages import key_averages
    from otel_recfn.batches.key_average import KeyAverages

    batch = make_batch([ran("aten::mm", 0, 20)])
    table = KeyAverages(list(key_averages(batch)), wall=wall_time(batch, BLOCK)).table()
    titles, _, row = table.splitlines()[1:4]
    assert titles.split()[-2:] == ["Wall", "%"]
    assert row.split()[1::2][:1] == ["100.00%"]
    assert row.split()[-1] == "20.00%"
    assert table.endswith("MainThread: 20.0% recorded, 80.0% (80.000ms) outside PyTorch.\n")
