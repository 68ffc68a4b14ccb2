"""What samples found outside of PyTorch, in wall times, trees and findings, on made-up samples."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.build_tree import By, build_tree
from otel_recfn.batches.wall import Block, wall_time
from otel_recfn.model.batch import Sample
from otel_recfn.model.columns import NO_CONTEXT, Track
from otel_recfn.model.events import EventSource, RecordScope, make_event_id
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report

MS = 1_000_000
BLOCK = Block(BASE_NS, BASE_NS + 1000 * MS, MAIN_THREAD.native_id, "MainThread")
STEP, LOAD = (make_event_id(MAIN_THREAD.number, number) for number in (1, 2))
ROWS = [
    {"name": "aten::mm", "start_ns": BASE_NS, "end_ns": BASE_NS + 200 * MS},
    {
        "name": "load",
        "event_id": LOAD,
        "source": EventSource.RECORD_FUNCTION,
        "scope": RecordScope.USER_SCOPE,
        "start_ns": BASE_NS + 200 * MS,
        "end_ns": BASE_NS + 300 * MS,
    },
    {
        "name": "train",
        "event_id": STEP,
        "source": EventSource.STEP,
        "start_ns": BASE_NS,
        "end_ns": BASE_NS + 900 * MS,
    },
]


def sampled(
    name: str, count: int, parent: int = 0, thread: Track = MAIN_THREAD, start_ms: int = 300
) -> list[Sample]:
    """So many samples, one every 20 ms."""
    return [
        Sample(name, thread, BASE_NS + (start_ms + 20 * number) * MS, 20 * MS, parent, NO_CONTEXT)
        for number in range(count)
    ]


def process(samples: list[Sample]) -> Process:
    return Process("", make_batch(ROWS), block=BLOCK, samples=samples)


def found(samples: list[Sample]) -> list[Finding]:
    return [one for one in findings([Recording([process(samples)])]) if one.rule == "outside"]


def test_functions_between_ranges_and_in_steps_are_outside_and_those_in_ranges_are_not() -> None:
    samples = [
        *sampled("save: gzip.compress", 20),
        *sampled("sum_up", 3, parent=STEP),
        *sampled("read: json.loads", 4, parent=LOAD),
        *sampled("too late", 1, start_ms=1001),
        *sampled("worker", 9, thread=WORKER_THREAD),
    ]
    (thread,) = wall_time(make_batch(ROWS), BLOCK, samples=samples).threads
    times = [(each.name, each.time, each.count) for each in thread.functions]
    assert times == [("save: gzip.compress", 400_000.0, 20), ("sum_up", 60_000.0, 3)]
    assert thread.sentences(str)[1] == (
        "Sampled outside PyTorch in MainThread: save: gzip.compress 40.0%, sum_up 6.0%."
    )


@pytest.mark.parametrize(
    ("by", "parent"),
    [("name", ("outside PyTorch",)), ("thread", ("MainThread 1", "outside PyTorch"))],
)
def test_trees_have_them_below_the_time_outside(by: By, parent: tuple[str, ...]) -> None:
    batch = make_batch(ROWS)
    samples = sampled("save: gzip.compress", 20)
    tree = build_tree(batch, by, wall=wall_time(batch, BLOCK, samples=samples))
    assert [(row.path, row.cpu_time_total) for row in tree.outside] == [
        (parent, 700_000.0),
        ((*parent, "save: gzip.compress (sampled)"), 400_000.0),
    ]
    assert "save: gzip.compress (sampled)" in tree.table()


def test_a_function_that_takes_much_of_the_time_is_a_finding_that_names_it() -> None:
    (finding,) = found([*sampled("save: gzip.compress", 20), *sampled("sum_up", 6)])
    assert finding.headline == "`save: gzip.compress` runs outside PyTorch, 40% of the time"
    assert finding.serious
    assert "20 samples of MainThread" in finding.text
    assert "`sum_up` (120 ms)" in finding.text


@pytest.mark.parametrize("name", ["serve: queue.get", "threading.Condition.wait", "a: select.poll"])
def test_a_thread_that_waits_for_work_is_no_serious_one(name: str) -> None:
    (finding,) = found(sampled(name, 30))
    assert not finding.serious


def test_a_function_that_works_comes_before_one_that_waits() -> None:
    (finding,) = found([*sampled("serve: queue.get", 20), *sampled("read: json.loads", 6)])
    assert finding.title == "`read: json.loads` runs outside PyTorch"
    assert "Then come `serve: queue.get` (400 ms)." in finding.text


def test_whom_a_function_waits_for_is_named() -> None:
    name = "serve: concurrent.futures._base.Future.result"
    waits = [each._replace(waits_for="tokenizer_0") for each in sampled(name, 16)]
    (finding,) = found([*waits, *sampled(name, 14)])
    assert finding.text.endswith(" Meanwhile it waited for the thread `tokenizer_0`, which worked.")
    (finding,) = found([*waits, *sampled(name, 20)])
    assert "Meanwhile" not in finding.text


def test_waiting_for_work_comes_last() -> None:
    lazy = {"name": "nn.Module: Lazy_0", "source": EventSource.MODULE, "cpu_time_ns": 0}
    times = {"start_ns": BASE_NS, "end_ns": BASE_NS + 300 * MS}
    rows = [{**lazy, **times, "thread": WORKER_THREAD}, ROWS[0]]
    samples = sampled("serve: queue.get", 30)
    recording = Recording([Process("", make_batch(rows), block=BLOCK, samples=samples)])
    assert [each.rule for each in findings([recording])] == ["cpu", "outside"]


def test_a_worker_that_waits_for_its_loader_has_none() -> None:
    waits = sampled("main: torch.utils.data.dataloader.DataLoader.__iter__", 30)
    assert not found(waits)
    item = [each._replace(item="9 (worker 0)") for each in sampled("Pictures.__getitem__", 6)]
    (finding,) = found([*waits, *item])
    assert "`Pictures.__getitem__`" in finding.title
    assert (
        "6 samples of MainThread found it there, 6 of them at index 9 (worker 0):" in finding.text
    )


def test_few_samples_and_little_time_are_none() -> None:
    assert not found(sampled("save", 4))
    assert not found([])


def test_reports_say_it() -> None:
    report = Report([process(sampled("save: gzip.compress", 20))])
    assert any("save: gzip.compress most of it (sampled)" in each for each in report.sentences())
    functions: Any = report.text("json")
    assert '"name": "save: gzip.compress"' in functions
