"""What units say of the Python that ran in them while nothing was recorded, on made-up samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from spans_harness import ELSEWHERE, LATER_NS, Harness

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.model.batch import NO_CONTEXT, Batch, Sample, SpanContextRef
from otel_recfn.model.events import ContextFlag, EventFlag, EventSource, make_event_id
from otel_recfn.sinks.spans.budgets import Volume

MS = 1_000_000
TIME, TOP = "recfn.unit.outside.duration_ns", "recfn.unit.outside.top"
SAVE, LOAD = "save: gzip.compress", "load: json.loads"
MODULE: dict[str, Any] = {"source": EventSource.MODULE, "name": "nn.Module: Net_0"}
EVALUATION: dict[str, Any] = {**MODULE, "flags": EventFlag.EVALUATION}
TRAINING: dict[str, Any] = {**MODULE, "flags": EventFlag.BEGINS_STEP}


def operator(number: int, start_ms: int, took_ms: int, **more: Any) -> dict[str, Any]:
    """The row of a range of the main thread, which is its n-th."""
    start_ns = BASE_NS + start_ms * MS
    end_ns = start_ns + took_ms * MS
    event_id = make_event_id(MAIN_THREAD.number, number)
    return {"event_id": event_id, "start_ns": start_ns, "end_ns": end_ns, **more}


def samples(
    name: str, after: int, since_ms: int, *at_ms: int, current: SpanContextRef = NO_CONTEXT
) -> list[Sample]:
    """Samples of the main thread at these moments, after its n-th range has ended."""
    return [
        Sample(
            name,
            MAIN_THREAD,
            BASE_NS + time_ms * MS,
            20 * MS,
            0,
            current,
            make_event_id(MAIN_THREAD.number, after),
            BASE_NS + since_ms * MS,
        )
        for time_ms in at_ms
    ]


class Request:
    """A span of the program's, and what a sink sends below it."""

    def __init__(self, volume: Volume | None = None) -> None:
        self.harness = Harness(volume=volume or Volume(100))
        self.span = ELSEWHERE.start_span("request", start_time=BASE_NS)
        ids = self.span.get_span_context()
        self.harness.sink.saw(ids.trace_id, ids.span_id, self.span)
        self.current = context(ids.trace_id, ids.span_id)

    def batch(self, rows: Sequence[dict[str, Any]], found: Sequence[Sample]) -> Batch:
        """A batch of rows and samples in the span."""
        batch = make_batch([{"context": self.current, **row} for row in rows])
        own = [
            one._replace(context=self.current) if one.context is NO_CONTEXT else one
            for one in found
        ]
        return replace(batch, samples=own)

    def end(
        self, rows: Sequence[dict[str, Any]], found: Sequence[Sample], after_ms: int
    ) -> list[ReadableSpan]:
        """The spans that are sent as the span ends."""
        self.span.end(BASE_NS + after_ms * MS)
        self.harness.came(replace(self.batch(rows, found), drained_ns=LATER_NS))
        return list(self.harness.exporter.get_finished_spans())


def outside(spans: Sequence[ReadableSpan]) -> list[tuple[str, int, tuple[str, ...]]]:
    """The spans that say what ran outside, and what they say."""
    return [
        (span.name, span.attributes[TIME], tuple(span.attributes[TOP]))
        for span in spans
        if span.attributes and TIME in span.attributes
    ]


def test_the_span_with_the_sums_of_the_unit_has_those_of_its_functions() -> None:
    rows = [operator(1, 0, 10, name="mm"), operator(2, 100, 50, name="conv")]
    found = [*samples(SAVE, 1, 10, 20, 40, 60), *samples(LOAD, 1, 10, 80)]
    spans = Request().end(rows, found, 200)
    top = (f"{SAVE}: 3 x, 60.000 ms", f"{LOAD}: 1 x, 20.000 ms")
    assert outside(spans) == [("conv", 80 * MS, top)]


def test_what_runs_after_the_last_range_of_a_span_is_the_spans_until_its_end() -> None:
    spans = Request().end([operator(1, 0, 10)], samples(SAVE, 1, 10, 30, 50, 70), 60)
    assert outside(spans) == [("op", 40 * MS, (f"{SAVE}: 2 x, 40.000 ms",))]


@pytest.mark.parametrize(
    "sample",
    [
        samples("threading.Condition.wait", 1, 10, 30)[0],
        samples("concurrent.futures.thread._worker", 1, 10, 30)[0],
        samples(SAVE, 1, 10, 30, current=context(0xABC, 0xD))[0],
        samples(SAVE, 1, 10, 30, current=context(0xABC, 0xD, ContextFlag.NONE))[0],
    ],
)
def test_threads_without_work_and_other_spans_are_not_of_the_unit(sample: Sample) -> None:
    assert not outside(Request().end([operator(1, 0, 10)], [sample], 60))


def test_a_function_that_waits_is_shown() -> None:
    found = samples("serve: queue.get", 1, 10, 30)
    assert outside(Request().end([operator(1, 0, 10)], found, 60))


def test_each_part_of_a_unit_has_its_own() -> None:
    request = Request()
    found = [*samples(SAVE, 1, 10, 30), *samples(LOAD, 2, 50, 70)]
    request.harness.came(request.batch([operator(1, 0, 10)], found), flushes=True)
    spans = request.harness.exporter.get_finished_spans()
    assert outside(spans) == [("op", 20 * MS, (f"{SAVE}: 1 x, 20.000 ms",))]
    spans = request.end([operator(2, 40, 10)], samples(LOAD, 2, 50, 90), 100)
    assert outside(spans)[1:] == [("op", 40 * MS, (f"{LOAD}: 2 x, 40.000 ms",))]


def own_trace(kind: dict[str, Any], found: Sequence[Sample]) -> list[ReadableSpan]:
    """The spans of a trace of ours with two ranges."""
    harness = Harness(volume=Volume(100))
    rows = [operator(1, 0, 10, **kind), operator(2, 60, 10)]
    announced = ("event_id", "name", "source", "start_ns", "flags")
    opened = [{name: row[name] for name in announced if name in row} for row in rows]
    batch = make_batch(rows, [{"name": "op", **one} for one in opened])
    harness.came(replace(batch, samples=found))
    return [*harness.exporter.get_finished_spans(), *harness.close()]


@pytest.mark.parametrize("kind", [EVALUATION, TRAINING])
def test_the_root_of_a_trace_of_ours_has_what_ran_between_its_ranges(kind: dict[str, Any]) -> None:
    [(name, duration_ns, top)] = outside(own_trace(kind, samples(SAVE, 1, 10, 30, 50)))
    assert name in {"module call: Net_0", "training step"}
    assert (duration_ns, top) == (40 * MS, (f"{SAVE}: 2 x, 40.000 ms",))


@pytest.mark.parametrize(("kind", "has_it"), [(EVALUATION, False), (TRAINING, True)])
def test_what_runs_after_it_is_only_that_of_a_training_step(
    kind: dict[str, Any], has_it: bool
) -> None:
    assert bool(outside(own_trace(kind, samples(SAVE, 2, 70, 90)))) is has_it


def test_a_sample_of_another_threads_trace_is_not_of_this_one() -> None:
    [sample] = samples(SAVE, 1, 10, 30)
    elsewhere = make_event_id(WORKER_THREAD.number, 1)
    other = sample._replace(thread=WORKER_THREAD, last_begun=elsewhere)
    assert not outside(own_trace(TRAINING, [other]))
