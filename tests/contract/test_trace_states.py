"""The trace state of the span that a range lies in comes out with the range's context."""

from __future__ import annotations

from recording_helpers import Capture, Reader, Worker, by_name

from otel_recfn.model.batch import SpanContextRef
from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.types import MAX_TRACE_STATES, ContextReading

SAMPLED = int(ContextFlag.SAMPLED)


def attach(capture: Capture, reader: Reader, trace_id: int, trace_state: str) -> SpanContextRef:
    """Make a span with that trace state the current one; what the rows below it are to say."""
    recorder, span = capture.recorder, object()
    reader.reading = ContextReading(trace_id, 7, SAMPLED | recorder.keep_trace_state(trace_state), span=span)
    recorder.set_context_reader(reader)
    recorder.span_attached(span, object())
    return SpanContextRef(trace_id, 7, SAMPLED, trace_state)


def test_it_stands_in_the_context_of_every_row(capture: Capture) -> None:
    reader = Reader()
    first = attach(capture, reader, 1, "vendor=one,other=x")
    outer = capture.begin("outer")
    capture.end(capture.begin("inner"))
    capture.end(outer)
    second = attach(capture, reader, 2, "")
    capture.end(capture.begin("next"))
    rows = by_name(capture.finish())
    assert rows["outer"].context == rows["inner"].context == first
    assert rows["next"].context == second
    assert [capture.batches[0].contexts[each.context] for each in capture.opened()] == [first, second]


def test_a_range_that_is_current_in_another_thread_hands_it_on(capture: Capture, workers: list[Worker]) -> None:
    context = attach(capture, Reader(), 1, "vendor=one")
    outer = capture.begin("outer")
    [around] = capture.recorder.ranges_after(None)
    high, low, span_id, flags = around.context_words
    assert capture.recorder.split_flags(flags) == (SAMPLED, "vendor=one")

    def in_worker() -> None:
        reading = ContextReading(high << 64 | low, span_id, flags, around.event_id, around.root, object())
        capture.recorder.set_context_reader(Reader(reading))
        capture.end(capture.begin("below"))

    workers[0].call(in_worker)
    capture.end(outer)
    rows = by_name(capture.finish())
    assert (rows["below"].parent, rows["below"].context) == (outer, context)


def test_one_that_is_in_use_outlives_very_many_others(capture: Capture) -> None:
    context = attach(capture, Reader(), 1, "vendor=long")
    outer = capture.begin("outer")
    for number in range(3 * MAX_TRACE_STATES):
        capture.recorder.keep_trace_state(f"vendor={number}")
        if number % (MAX_TRACE_STATES // 2) == 0:
            capture.end(capture.begin("inner"))
            capture.drain()
    capture.end(outer)
    capture.finish()
    assert {row.context for row in capture.rows()} == {context}
