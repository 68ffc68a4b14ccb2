"""Ranges summed up by name, and what they spent without their children."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn import profile, record_function
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.batches.profiled_events import profiled_events
from otel_recfn.batches.span_names import with_module_names
from otel_recfn.errors import SettingError
from otel_recfn.model.events import EventFlag, EventSource, RowKind, make_event_id

pytestmark = pytest.mark.one_python

NAMES = ("a", "b", "c")
TRACKS = (MAIN_THREAD, WORKER_THREAD)

row = st.tuples(
    st.sampled_from(TRACKS),
    st.integers(0, 30),  # what it lies in, of the rows around it, if that lasts longer
    st.integers(0, 1000),
    st.sampled_from(NAMES),
    st.sampled_from([EventFlag.NONE, EventFlag.NONE, EventFlag.NONE, EventFlag.ASYNC]),
    st.sampled_from([RowKind.RANGE, RowKind.RANGE, RowKind.RANGE, RowKind.MARK]),
)


def rows_of(drawn: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    ids = [make_event_id(track.number, number + 1) for number, (track, *_) in enumerate(drawn)]
    return [
        {
            "event_id": ids[number],
            "thread": track,
            # So that none lies in itself.
            "parent": ids[above] if above < len(ids) and drawn[above][2] > spent else 0,
            "root": ids[number],
            "start_ns": 10_000,
            "end_ns": 10_000 + spent,
            "name": name,
            "flags": flags,
            "kind": kind,
        }
        for number, (track, above, spent, name, flags, kind) in enumerate(drawn)
    ]


def by_definition(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Row by row: what counts is synchronous, on its parent's track, and stands before it."""
    place = {one["event_id"]: number for number, one in enumerate(rows)}
    counts = [one["kind"] == RowKind.RANGE and not one["flags"] & EventFlag.ASYNC for one in rows]
    own = [
        one["end_ns"] - one["start_ns"] if counts[number] else 0 for number, one in enumerate(rows)
    ]
    spent = list(own)
    for number, one in enumerate(rows):
        above = place.get(one["parent"], -1)
        if (
            above > number
            and counts[number]
            and counts[above]
            and rows[above]["thread"] is one["thread"]
        ):
            own[above] -= spent[number]
    found: dict[str, int] = {}
    for number, one in enumerate(rows):
        if one["kind"] == RowKind.RANGE:
            found[one["name"]] = found.get(one["name"], 0) + own[number]
    return found


@given(st.lists(row, max_size=30))
def test_a_range_spends_what_its_children_leave(drawn: list[tuple[Any, ...]]) -> None:
    rows = rows_of(drawn)
    averages = key_averages(make_batch(rows))
    assert {one.key: round(one.self_cpu_time_total * 1000) for one in averages} == by_definition(
        rows
    )


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", "c"]),
            "shapes": st.sampled_from(["", "[[2]]", "[[3]]"]),
            "kind": st.sampled_from([RowKind.RANGE, RowKind.RANGE, RowKind.MARK]),
            "start_ns": st.integers(BASE_NS, BASE_NS + 5),
            "flops": st.integers(0, 1 << 58),
        }
    ),
    max_size=20,
)


def key_of(row: dict[str, Any], with_shapes: bool) -> tuple[str, str]:
    return row["name"], row["shapes"] if with_shapes else ""


@given(ROWS, st.booleans())
def test_each_range_is_in_one_group_and_groups_stand_as_they_first_began(
    rows: list[dict[str, Any]], with_shapes: bool
) -> None:
    batch = make_batch(rows)
    groups = key_averages(batch, group_by_input_shape=with_shapes)
    counts = Counter[tuple[str, str]]()
    flops = Counter[tuple[str, str]]()
    ranges = [row for row in rows if row["kind"] == RowKind.RANGE]
    for row in sorted(ranges, key=lambda row: row["start_ns"]):
        counts[key_of(row, with_shapes)] += 1
        flops[key_of(row, with_shapes)] += row["flops"]
    assert [(one.key, one.input_shapes) for one in groups] == list(counts)
    assert [one.count for one in groups] == list(counts.values())
    assert [one.flops for one in groups] == list(flops.values())


def timed(ordinal: int, start: int, end: int, parent: int = 0, **columns: Any) -> dict[str, Any]:
    return {
        "event_id": make_event_id(1, ordinal),
        "start_ns": BASE_NS + start,
        "end_ns": BASE_NS + end,
        "parent": make_event_id(1, parent) if parent else 0,
        **columns,
    }


TREE = [
    timed(3, 20, 30, parent=2, name="inner"),
    timed(2, 10, 60, parent=1, name="middle"),
    timed(4, 70, 80, parent=1, name="inner"),
    timed(1, 0, 100, name="outer"),
]


def test_averages_sum_up_by_name() -> None:
    averages = {each.key: each for each in key_averages(make_batch(TREE))}
    assert list(averages) == ["outer", "middle", "inner"]
    inner = averages["inner"]
    assert (inner.count, inner.cpu_time_total, inner.self_cpu_time_total, inner.cpu_time) == (
        2,
        0.02,
        0.02,
        0.01,
    )
    assert sum(each.self_cpu_time_total for each in averages.values()) == pytest.approx(0.1)


def test_a_range_alone_in_one_of_its_name_counts_as_that_one() -> None:
    """As in torch.profiler, of which an operator that has another one of its name do the work is
    one call.
    """
    rows = [
        timed(4, 30, 40, parent=3, name="other"),
        timed(3, 20, 50, parent=2, name="mean", shapes="[[3]]", flops=5),
        timed(2, 10, 60, parent=1, name="mean", shapes="[[2]]"),
        timed(1, 0, 100, name="mean", shapes="[[1]]", flops=7),
        timed(6, 120, 130, parent=5, name="mean"),
        timed(7, 140, 150, parent=5, name="mean"),
        timed(5, 110, 200, name="mean"),
    ]
    averages = {each.key: each for each in key_averages(make_batch(rows))}
    mean = averages["mean"]
    assert (mean.count, mean.flops, averages["other"].count) == (4, 7, 1)
    assert mean.cpu_time_total == pytest.approx((100 + 10 + 10 + 90) / 1000)
    assert mean.self_cpu_time_total == pytest.approx((90 + 10 + 10 + 70) / 1000)
    by_shape = {
        each.input_shapes: each
        for each in key_averages(make_batch(rows), group_by_input_shape=True)
        if each.key == "mean"
    }
    assert (by_shape["[[1]]"].count, by_shape["[[1]]"].self_cpu_time_total) == (
        1,
        pytest.approx(0.09),
    )
    assert set(by_shape) == {"[[1]]", ""}


def test_averages_go_to_other_processes() -> None:
    with profile() as prof, record_function("work"):
        pass
    (average,) = prof.key_averages()
    assert average.cpu_children == []
    (back,) = pickle.loads(pickle.dumps(list(prof.key_averages())))
    assert (back.key, back.count, back.cpu_time_total) == (average.key, 1, average.cpu_time_total)
    assert (back.cpu_parent, back.cpu_children) == (None, [])


def test_memory_counts_for_every_range_around_it() -> None:
    allocate = {"kind": RowKind.MEMORY, "name": "[memory]", "device": "cpu"}
    rows = [
        timed(3, 5, 5, parent=2, nbytes=100, **allocate),
        timed(4, 6, 6, parent=2, nbytes=-30, **allocate),
        timed(2, 1, 8, parent=1, name="inner"),
        timed(5, 9, 9, parent=1, nbytes=8, **allocate),
        timed(1, 0, 10, name="outer"),
        timed(6, 20, 20, nbytes=1000, **allocate),
    ]
    memory = {
        one.key: (one.cpu_memory_usage, one.self_cpu_memory_usage)
        for one in key_averages(make_batch(rows))
    }
    assert memory == {"inner": (70, 70), "outer": (78, 8)}


def test_memory_of_devices_is_apart_from_that_of_the_cpu() -> None:
    rows = [
        timed(2, 5, 5, parent=1, kind=RowKind.MEMORY, nbytes=100, device="cpu"),
        timed(3, 6, 6, parent=1, kind=RowKind.MEMORY, nbytes=3 << 20, device="cuda:0"),
        timed(1, 0, 10, name="outer"),
    ]
    averages = key_averages(make_batch(rows))
    [outer] = averages
    assert (outer.cpu_memory_usage, outer.device_memory_usage, outer.self_device_memory_usage) == (
        100,
        3 << 20,
        3 << 20,
    )
    assert re.search(r"Memory +Self Memory +Device Memory +Self Device Memory", averages.table())
    assert re.search(r"outer .* 100 B +100 B +3.00 MiB +3.00 MiB", averages.table())
    event = {each.name: each for each in profiled_events(make_batch(rows))}["outer"]
    assert (event.cpu_memory_usage, event.device_memory_usage, event.self_device_memory_usage) == (
        100,
        3 << 20,
        3 << 20,
    )


def test_the_table_sorts_and_limits() -> None:
    table = key_averages(make_batch(TREE)).table(sort_by="count", row_limit=1)
    assert "inner" in table
    assert "outer" not in table
    assert "# of Calls" in table
    assert "Memory" not in table


def names_in(table: str) -> list[str]:
    """The names in a table, without its head and its last line."""
    return [line.split("  ")[0].strip() for line in table.splitlines() if re.match("[^ -]", line)][
        1:-1
    ]


def test_the_table_takes_what_torchs_takes() -> None:
    averages = key_averages(make_batch([*TREE, timed(5, 200, 300, name="n" * 100)]))
    assert names_in(averages.table(top_level_events_only=True)) == ["outer", "n" * 77 + "..."]
    assert names_in(averages.table(max_name_column_width=8)) == [
        "outer",
        "middle",
        "inner",
        "nnnnn...",
    ]
    assert names_in(averages.table(max_name_column_width=None))[-1] == "n" * 100
    assert averages.table(header="Training").startswith("Training\n---")
    assert "0.000ms" in averages.table(time_unit="ms")
    assert "us" not in averages.table(time_unit="ms")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"row_limit": "3"}, "row_limit='3' is not allowed; allowed: a whole number from -1"),
        ({"row_limit": None}, "row_limit=None is not allowed"),
        (
            {"max_name_column_width": 2},
            "max_name_column_width=2 is not allowed; allowed: a whole number from 4",
        ),
        ({"max_src_column_width": "wide"}, "max_src_column_width='wide' is not allowed"),
        ({"time_unit": "min"}, "time_unit='min' is not allowed; allowed: None, s, ms, us"),
    ],
)
def test_what_the_table_can_not_be_asked_for_is_refused(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        key_averages(make_batch(TREE)).table(**asked)


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingError, match="cpu_time_total"):
        key_averages(make_batch(TREE)).table(sort_by="cuda_time")


def test_a_block_with_the_name_of_a_modules_call_is_in_its_row() -> None:
    """Its name was there before the call was named."""
    block = {"name": "Linear", "source": EventSource.RECORD_FUNCTION}
    call = {"name": "nn.Module: Linear_0", "source": EventSource.MODULE}
    named = with_module_names(make_batch([block, call]), torch_names=False)
    assert [(row.key, row.count) for row in key_averages(named)] == [("Linear", 2)]
    assert [(row.name, row.count) for row in build_tree(named)] == [("Linear", 2)]
