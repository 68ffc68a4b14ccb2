"""What units say of the Python that ran in them while nothing was recorded, on made-up samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from spans_harness import ELSEWHERE, LATER_NS, Harness

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.model.batch import NO_CONTEXT, Batch, Sample, SpanContextRef
from otel_recfn.model.events import (
    ContextFlag,
    EventFlag,
    EventSource,
    RecordScope,
    make_event_id,
)
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.span_hook import Hook
from otel_recfn.sinks.spans.unit_samples import UnitSamples, spans_in

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

    def __init__(self, volume: Volume | None = None, hook: Hook | None = None) -> None:
        self.harness = Harness(volume=volume or Volume(100), hook=hook)
        self.span = ELSEWHERE.start_span("request", start_time=BASE_NS)
        ids = self.span.get_span_context()
        self.harness.sink.note_parent_span(ids.trace_id, ids.span_id, self.span)
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
    assert name in {"module call: Net", "training step"}
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


def sampled(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if "recfn.sampled" in (span.attributes or {})]


def parent_name(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> str:
    assert span.parent is not None
    return {one.context.span_id: one.name for one in spans}.get(span.parent.span_id, "above")


def milliseconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - BASE_NS) / MS, (span.end_time - BASE_NS) / MS


def test_a_function_that_took_a_tenth_has_a_span_where_it_ran_for_longest() -> None:
    rows = [operator(1, 0, 10), operator(2, 100, 100), operator(3, 300, 10)]
    found = [
        *samples(SAVE, 1, 10, 20, 40, 60),
        *samples(LOAD, 1, 10, 80),
        *samples(SAVE, 2, 200, 225),
    ]
    request = Request()
    spans = request.end(rows, found, 400)
    [span] = sampled(spans)
    assert span.name == "outside PyTorch: gzip.compress (sampled)"
    assert milliseconds(span) == (10, 60)
    assert parent_name(span, spans) == "above"
    attributes = span.attributes or {}
    assert attributes["recfn.sampled"] is True
    assert attributes["recfn.sample_count"] == 4
    assert attributes["recfn.sampled_time_ns"] == 80 * MS
    assert attributes["recfn.sampled_function"] == SAVE
    assert attributes["thread.name"] == "MainThread"
    counters = request.harness.sink.counters()
    assert (counters["added"], counters["exported"]) == (1, len(rows) + 1)


def test_functions_in_one_gap_lie_one_after_the_other() -> None:
    found = [*samples(SAVE, 1, 10, 40), *samples(LOAD, 1, 10, 50, 70)]
    assert [
        milliseconds(one) for one in sampled(Request().end([operator(1, 0, 10)], found, 80))
    ] == [
        (40, 70),
        (20, 40),
    ]


BLOCK: dict[str, Any] = {
    "name": "load",
    "source": EventSource.RECORD_FUNCTION,
    "scope": RecordScope.USER_SCOPE,
}


def in_block(name: str, block: int, since_ms: int, *at_ms: int) -> list[Sample]:
    """Samples in the n-th range of the main thread, which is open."""
    event_id = make_event_id(MAIN_THREAD.number, block)
    return [
        one._replace(parent=event_id, is_directly_in_span=False)
        for one in samples(name, block, since_ms, *at_ms)
    ]


def test_it_lies_in_the_range_around_it() -> None:
    spans = Request().end([operator(1, 0, 100, **BLOCK)], in_block(LOAD, 1, 0, 20, 40), 110)
    [span] = sampled(spans)
    assert parent_name(span, spans) == "load"


def test_in_a_range_without_a_span_of_its_own_it_has_none() -> None:
    rows = [operator(number, 100 * number, 90, **BLOCK) for number in range(1, 41)]
    found = [one for n in range(1, 41) for one in in_block(LOAD, n, 100 * n, 100 * n + 30)]
    spans = Request(Volume(10)).end(rows, found, 4200)
    assert not sampled(spans)
    assert outside(spans)


def test_directly_in_a_step_it_lies_in_the_steps_span() -> None:
    found = [one._replace(parent=77) for one in samples(SAVE, 1, 10, 30)]
    [span] = sampled(Request().end([operator(1, 0, 10)], found, 60))
    assert span.parent is not None


def test_sums_of_ranges_lie_beside_it() -> None:
    starts = [*range(50), *range(150, 200)]
    rows = [
        operator(number, start_ms, 1, name="mm" if number % 2 else "add")
        for number, start_ms in enumerate(starts, 1)
    ]
    spans = Request(Volume(5)).end(rows, samples(SAVE, 50, 50, 70, 90, 110, 130, 149), 200)
    times = sorted(map(milliseconds, spans))
    assert len(sampled(spans)) == 1
    assert sum(end - start for start, end in times) == pytest.approx(200, abs=2)
    assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_it_counts_as_a_span_of_the_budget() -> None:
    rows = [operator(number, 10 * number, 9) for number in range(1, 11)]
    spans = Request(Volume(4)).end(rows, samples(SAVE, 10, 109, 150), 160)
    assert len(sampled(spans)) == 1
    assert len(spans) <= 4
    assert len(Request(Volume(1)).end(rows, samples(SAVE, 10, 109, 150), 160)) == 1


def test_a_hook_that_drops_the_range_around_it_leaves_it_in_the_range_around_that() -> None:
    request = Request(hook=lambda row, _attributes: False if row.name == "inner" else None)
    outer = operator(1, 0, 100, **BLOCK)
    inner = operator(2, 5, 90, **{**BLOCK, "name": "inner"}, parent=outer["event_id"])
    spans = request.end([inner, outer], in_block(LOAD, 2, 5, 30, 50), 110)
    [span] = sampled(spans)
    assert parent_name(span, spans) == "load"


def test_after_a_training_step_it_shows_what_the_step_waited_for() -> None:
    spans = own_trace(TRAINING, samples(SAVE, 2, 70, 90, 110))
    [span] = sampled(spans)
    assert parent_name(span, spans) == "training step"
    assert milliseconds(span) == (70, 110)


def waited_for(spans: Sequence[ReadableSpan]) -> list[tuple[str, ...]]:
    name = "recfn.unit.waited_for"
    return [tuple(span.attributes[name]) for span in spans if name in (span.attributes or {})]


def test_a_unit_that_waits_for_most_of_its_time_says_for_whom() -> None:
    row = operator(1, 0, 100, **BLOCK)
    found = in_block(LOAD, 1, 0, 20, 40, 60, 80)
    reasons = ["spinner-0", "spinner-0", "spinner-0", LOAD]
    waiting = [one._replace(waits_for=reason) for one, reason in zip(found, reasons, strict=True)]
    assert waited_for(Request().end([row], waiting, 110)) == [("spinner-0: 75 %", f"{LOAD}: 25 %")]
    assert not waited_for(Request().end([row], waiting, 500))
    assert not waited_for(Request().end([row], found, 110))


def test_waits_in_operators_are_no_time_outside() -> None:
    row = operator(1, 0, 100)
    waiting = [
        one._replace(waits_for="spinner-0", is_in_operator=True)
        for one in in_block(LOAD, 1, 0, 20, 40, 60, 80)
    ]
    spans = Request().end([row], waiting, 110)
    assert waited_for(spans) == [("spinner-0: 100 %",)]
    assert not outside(spans)
    assert not sampled(spans)


def test_a_span_of_samples_lies_in_its_unit() -> None:
    """Jaeger warns of a span that ends after its parent."""
    taken = UnitSamples()
    for time_ns in (20 * MS, 40 * MS, 60 * MS):
        taken.add(Sample(SAVE, WORKER_THREAD, time_ns, 20 * MS, 0, NO_CONTEXT))
    functions = taken.take_all(None).functions
    ((_, inside),) = spans_in(functions, 10 * MS, 50 * MS)
    assert (inside.start_ns, inside.end_ns) == (10 * MS, 50 * MS)
    assert spans_in(functions, 70 * MS, 80 * MS) == []
    ((_, later),) = spans_in(functions, 10 * MS, 50 * MS, may_end_later=True)
    assert later.end_ns == 60 * MS
