"""What was current when a range began outside every other, with its trace state; ranges of other
threads that enclose it.
"""

from __future__ import annotations

import contextvars
import weakref

import pytest

from helpers.recording_helpers import Capture, Reader, Worker, by_name
from otel_recfn import _native  # what sources/otel_context.py tells of spans
from otel_recfn.model.batch import NO_CONTEXT, SpanContextRef
from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import MAX_TRACE_STATES, ContextReading, trace_states

FIRST = ContextReading(trace_id=(1 << 127) + 5, span_id=(1 << 63) + 7, flags=1, enclosing=0)
SECOND = ContextReading(trace_id=3, span_id=4, flags=0, enclosing=0)


def ref(reading: ContextReading) -> SpanContextRef:
    return SpanContextRef(reading.trace_id, reading.span_id, reading.flags)


def attach_within_a_range(capture: Capture) -> int:
    """FIRST is current where "outer" begins, SECOND from before "inner" on, which no span told
    of.

    Returns outer's id.
    """
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    reader.reading = SECOND
    _native.context_attached(object())
    capture.end(capture.begin("inner"))
    capture.end(outer)
    return outer


def test_spans_that_are_attached_and_never_detached_are_given_up(recorder: Recorder) -> None:
    class Span:
        pass

    def attach_many() -> list[weakref.ref[Span]]:
        spans = [Span() for _ in range(1000)]
        for span in spans:
            _native.span_attached(span, object())
        return [weakref.ref(span) for span in spans]

    task = contextvars.copy_context()
    left = sum(each() is not None for each in task.run(attach_many))
    assert 0 < left <= 128


def test_a_token_that_has_the_address_of_a_dropped_one_takes_back_nothing_of_it(
    capture: Capture,
) -> None:
    reader = Reader(FIRST)
    span = object()
    address = object()
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    _native.span_attached(span, address)
    reader.reading = SECOND._replace(span=span)
    _native.context_attached(address)  # baggage, say, with another token at the same address
    _native.span_detached(address)
    capture.end(capture.begin("in the span"))
    capture.end(outer)
    assert by_name(capture.finish())["in the span"].context == ref(SECOND)


def test_a_span_is_not_kept_alive_by_the_ranges_that_were_in_it(capture: Capture) -> None:
    class Span:
        pass

    span = Span()
    token = object()
    _native.span_attached(span, token)
    capture.end(capture.begin())
    _native.span_detached(token)
    left = weakref.ref(span)
    del span
    assert left() is None


def test_a_span_that_nobody_told_of_is_older_than_every_range(capture: Capture) -> None:
    outer = attach_within_a_range(capture)
    assert by_name(capture.finish())["inner"].parent == outer


def test_a_reader_that_raises_is_no_context(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> ContextReading | None:
        raise RuntimeError("the context is broken")

    capture.recorder.set_context_reader(broken)
    for _ in range(2):
        _native.context_attached(object())
        capture.end(capture.begin())
    assert [row.context for row in capture.finish()] == [NO_CONTEXT] * 2
    assert caplog.text.count("cannot be read") == 1


def test_a_range_whose_span_is_current_is_the_parent_also_when_it_is_gone(capture: Capture) -> None:
    outer = capture.begin("outer")
    task = capture.begin("task")
    capture.end(task)
    capture.end(outer)
    capture.recorder.set_context_reader(Reader(FIRST._replace(enclosing=task, root=outer)))
    _native.context_attached(object())
    capture.end(capture.begin("late"))
    rows = by_name(capture.finish())
    assert (rows["late"].parent, rows["late"].root, rows["late"].context) == (
        task,
        outer,
        ref(FIRST),
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_range_that_another_thread_ended_gives_way_to_what_was_around_it(
    capture: Capture, workers: list[Worker], depth: int
) -> None:
    """And never to a range of another task, which stands below it on the thread's stack."""
    tasks = [contextvars.copy_context() for _ in range(3)]
    ids: list[int] = []

    def begin_in_it() -> None:
        capture.end(capture.begin("before"))
        for ended in reversed(ids[1:]):
            workers[1].call(capture.end, ended)
            capture.end(capture.begin(f"after {ended}"))

    def run() -> None:
        ids.append(tasks[1].run(capture.begin, "own"))
        foreign = tasks[0].run(capture.begin, "another task's")
        ids.extend(tasks[1].run(capture.begin, f"own {number}") for number in range(depth))
        newer = tasks[2].run(capture.begin, "newer, of a third task")
        tasks[1].run(begin_in_it)
        for event_id in (newer, foreign, ids[0]):
            capture.end(event_id)

    workers[0].call(run)
    rows = by_name(capture.finish())
    assert rows["before"].parent == ids[-1]
    assert [rows[f"after {ended}"].parent for ended in ids[1:]] == ids[:-1]
    assert {rows[f"after {ended}"].root for ended in ids[1:]} == {ids[0]}


SAMPLED = int(ContextFlag.SAMPLED)


def attach(capture: Capture, reader: Reader, trace_id: int, trace_state: str) -> SpanContextRef:
    """Make a span with that trace state the current one; what the rows below it are to say."""
    recorder = capture.recorder
    span = object()
    reader.reading = ContextReading(
        trace_id, 7, SAMPLED | trace_states.keep(trace_state), span=span
    )
    recorder.set_context_reader(reader)
    _native.span_attached(span, object())
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
    assert [capture.batches[0].contexts[each.context] for each in capture.opened()] == [
        first,
        second,
    ]


def test_a_range_that_is_current_in_another_thread_hands_it_on(
    capture: Capture, workers: list[Worker]
) -> None:
    context = attach(capture, Reader(), 1, "vendor=one")
    outer = capture.begin("outer")
    [around] = _native.ranges_after(None)
    assert trace_states.split(around.context_flags) == (SAMPLED, "vendor=one")

    def in_worker() -> None:
        reading = ContextReading(
            trace_id=around.trace_high << 64 | around.trace_low,
            span_id=around.span_id,
            flags=around.context_flags,
            enclosing=around.event_id,
            root=around.root,
            span=object(),
        )
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
        trace_states.keep(f"vendor={number}")
        if number % (MAX_TRACE_STATES // 2) == 0:
            capture.end(capture.begin("inner"))
            capture.drain()
    capture.end(outer)
    capture.finish()
    assert {row.context for row in capture.rows()} == {context}
