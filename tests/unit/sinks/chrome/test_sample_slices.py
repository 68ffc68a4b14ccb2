"""Runs of samples in a Chrome trace, and what a report reads of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch, open_for_long
from helpers.trace_files import events_in, samples_in
from otel_recfn.batches.wall import wall_time
from otel_recfn.model.batch import NO_CONTEXT, Batch, ProgramSpan, Sample
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, make_event_id
from otel_recfn.report.findings import findings
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.traces.reading import read_trace
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python

NOW_NS = time.time_ns() // 1000 * 1000
MS = 1_000_000
SAVE, LOAD = "save: gzip.compress", "load: json.loads"
FIRST, SECOND = (make_event_id(MAIN_THREAD.number, number) for number in (1, 2))


def operator(number: int, start_ms: int, end_ms: int, **more: Any) -> dict[str, Any]:
    """The row of the main thread's n-th range."""
    return {
        "event_id": make_event_id(MAIN_THREAD.number, number),
        "start_ns": NOW_NS + start_ms * MS,
        "end_ns": NOW_NS + end_ms * MS,
        **more,
    }


def samples(name: str, since_ms: int, *at_ms: int, parent: int = 0, **more: Any) -> list[Sample]:
    return [
        Sample(
            name,
            MAIN_THREAD,
            NOW_NS + time_ms * MS,
            20 * MS,
            parent,
            NO_CONTEXT,
            since_ns=NOW_NS + since_ms * MS,
            **more,
        )
        for time_ms in at_ms
    ]


def batch(
    rows: Sequence[dict[str, Any]], found: Sequence[Sample], spans: Sequence[ProgramSpan] = ()
) -> Batch:
    return replace(make_batch(rows), samples=found, spans=spans)


def times(path: Path) -> list[tuple[str, int, int]]:
    """The runs in a file, in whole milliseconds."""
    found = []
    for event in samples_in(path):
        start_ms = float(event["ts"]) / 1000 + base_ms(path)
        found.append((event["name"], round(start_ms), round(start_ms + float(event["dur"]) / 1000)))
    return found


def base_ms(path: Path) -> float:
    first = min(float(event["ts"]) for event in events_in(path, "X"))
    return -first / 1000


def test_runs_are_slices_between_ranges(writer: TraceWriter, path: Path) -> None:
    rows = [operator(1, 0, 10), operator(2, 100, 110)]
    found = [*samples(SAVE, 10, 20, 40, 60), *samples(LOAD, 10, 80), *samples(LOAD, 110, 130)]
    writer.write(batch(rows, found))
    assert times(path) == [
        (f"{SAVE} (sampled)", 10, 60),
        (f"{LOAD} (sampled)", 60, 80),
        (f"{LOAD} (sampled)", 110, 130),
    ]
    event = samples_in(path)[0]
    assert event["cat"] == "python_sample"
    assert event["args"] == {
        "Sampled function": SAVE,
        "Samples": 3,
        "Sampled time (ns)": 60 * MS,
        "Parent id": 0,
    }


def test_a_run_that_may_go_on_is_in_the_file_once(writer: TraceWriter, path: Path) -> None:
    writer.write(batch([operator(1, 0, 10)], samples(SAVE, 10, 30)))
    assert times(path) == [(f"{SAVE} (sampled)", 10, 30)]
    writer.write(batch([], samples(SAVE, 10, 50, 70)))
    assert times(path) == [(f"{SAVE} (sampled)", 10, 70)]
    writer.write(batch([operator(2, 75, 80)], samples(SAVE, 80, 100)))
    assert times(path) == [(f"{SAVE} (sampled)", 10, 70), (f"{SAVE} (sampled)", 80, 100)]
    writer.close()
    assert len(times(path)) == 2


def test_a_span_that_begins_or_ends_divides_a_run(writer: TraceWriter, path: Path) -> None:
    def span(end_ms: int) -> ProgramSpan:
        end_ns = NOW_NS + end_ms * MS if end_ms else 0
        return ProgramSpan(1, 2, 0, "GET /", MAIN_THREAD, NOW_NS + 50 * MS, end_ns, nests=True)

    writer.write(batch([operator(1, 0, 10)], samples(SAVE, 10, 30, 48, 70), [span(0)]))
    writer.write(batch([], samples(SAVE, 10, 90, 110), [span(100)]))
    writer.close()
    assert [one[1:] for one in times(path)] == [(10, 48), (50, 90), (100, 110)]
    slices = [(float(one["ts"]), float(one["ts"] + one["dur"])) for one in every_slice(path)]
    for (start, end), (other_start, other_end) in combinations(sorted(slices), 2):
        assert other_start >= end or other_end <= end or start == other_start


def every_slice(path: Path) -> list[dict[str, Any]]:
    return [*events_in(path, "X"), *samples_in(path)]


def test_it_ends_with_the_open_range_around_it(writer: TraceWriter, path: Path) -> None:
    block = operator(1, 0, 50, name="load", flags=EventFlag.PARTIAL)
    writer.write(open_for_long(make_batch([block])))
    writer.write(batch([], samples(LOAD, 0, 20, 40, 60, 80, parent=FIRST)))
    assert times(path) == [(f"{LOAD} (sampled)", 0, 50)]


def test_a_report_reads_them_as_samples(writer: TraceWriter, path: Path) -> None:
    block = {"source": EventSource.RECORD_FUNCTION, "scope": RecordScope.USER_SCOPE}
    rows = [operator(1, 0, 10), operator(2, 100, 200, name="block", **block)]
    found = [*samples(SAVE, 10, 20, 40, 60), *samples(LOAD, 100, 120, 140, parent=SECOND)]
    writer.write(batch(rows, found))
    writer.close()
    process = read_trace(path).process
    assert sorted(process.batch.names[name] for name in process.batch.name.tolist()) == [
        "block",
        "op",
    ]
    assert [(one.name, one.duration_ns) for one in process.samples] == (
        [(SAVE, 20 * MS)] * 3 + [(LOAD, 20 * MS)] * 2
    )
    (thread,) = wall_time(process.batch, samples=process.samples).threads
    assert [(one.name, one.time, one.count) for one in thread.functions] == [(SAVE, 60_000.0, 3)]


def test_slices_say_whom_their_thread_waited_for(writer: TraceWriter, path: Path) -> None:
    """Each says one thing."""
    rows = [operator(1, 0, 10), operator(2, 100, 200)]
    inside: dict[str, Any] = {"parent": SECOND, "is_in_operator": True}
    found = [
        *samples(SAVE, 10, 20),
        *samples(SAVE, 10, 40, 60, waits_for="spinner-0"),
        *samples(SAVE, 10, 80, waits_for="other processes"),
        *samples(LOAD, 100, 120, 140, waits_for="spinner-0", **inside),
        *samples(LOAD, 100, 160, waits_for=LOAD, **inside),
    ]
    writer.write(batch(rows, found))
    assert times(path) == [
        (f"{SAVE} (sampled)", 10, 20),
        (f"{SAVE} (sampled)", 20, 60),
        (f"{SAVE} (sampled)", 60, 80),
        ("waits for spinner-0 (sampled)", 100, 140),
        (f"waits in {LOAD} (sampled)", 140, 160),
    ]
    says = [
        [event["args"].get(name) for name in ("Samples", "Waited for", "In operator")]
        for event in samples_in(path)
    ]
    assert says == [
        [1, None, None],
        [2, "spinner-0", None],
        [1, "other processes", None],
        [2, "spinner-0", True],
        [1, LOAD, True],
    ]


@pytest.mark.parametrize("waits_for", ["", "spinner-0", "other processes", LOAD])
def test_a_report_of_the_file_finds_what_one_of_the_recording_does(
    writer: TraceWriter, path: Path, waits_for: str
) -> None:
    other = {"thread": WORKER_THREAD, "event_id": make_event_id(WORKER_THREAD.number, 1)}
    rows = [
        operator(1, 0, 100, name="waits", cpu_time_ns=MS),
        operator(2, 200, 201),
        {**operator(1, 0, 100, name="works", cpu_time_ns=60 * MS), **other},
    ]
    waits: dict[str, Any] = {"parent": FIRST, "is_in_operator": True, "waits_for": waits_for}
    found = [
        *(samples(LOAD, 0, 30, 50, **waits) if waits_for else []),
        *(samples(LOAD, 0, 70, **{**waits, "waits_for": "thread-1"})),
        *samples(SAVE, 100, 120, 140, 160, 180, 199),
    ]
    recorded = batch(rows, found)
    writer.write(recorded)
    writer.close()
    processes = [Process("", recorded, samples=found), read_trace(path).process]
    own, read = (findings([Recording([process])]) for process in processes)
    assert {finding.rule for finding in own} == {"cpu", "outside"}
    assert [finding[:4] for finding in read] == [finding[:4] for finding in own]
    functions, same = (
        wall_time(process.batch, samples=process.samples).threads[0].functions
        for process in processes
    )
    assert functions == same


def test_a_run_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    writer = TraceWriter(path)
    writer.write(batch([operator(1, 0, 10)], samples(SAVE, 10, 30)))
    writer.close()
    text = path.read_text().replace('"Sampled time (ns)"', '"Something"')
    path.write_text(text)
    trace = read_trace(path)
    assert not trace.process.samples
    assert "1 of" in trace.process.left_out
