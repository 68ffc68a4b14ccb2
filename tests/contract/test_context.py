"""What was current when a range began outside every other, and asynchronous ranges."""

from __future__ import annotations

import contextvars
import weakref

from contexts import FIRST, SECOND, ref
from recording_helpers import Capture, Reader, Worker, by_name, check_laws

from otel_recfn.model.batch import NO_CONTEXT
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import ContextReading


def attach_within_a_range(capture: Capture) -> int:
    """FIRST is current where "outer" begins, SECOND from before "inner" on, which no span told of. Returns outer's id."""
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    reader.reading = SECOND
    capture.recorder.context_attached(object())
    capture.end(capture.begin("inner"))
    capture.end(outer)
    return outer


def test_every_row_carries_the_context_of_its_outermost_range(capture: Capture) -> None:
    attach_within_a_range(capture)
    capture.end(capture.begin("next"))
    capture.finish()
    rows = by_name(capture.rows())
    assert rows["outer"].context == rows["inner"].context == ref(FIRST)
    assert rows["next"].context == ref(SECOND)
    announced = [capture.batches[0].contexts[opened.context] for opened in capture.opened()]
    assert announced == [ref(FIRST), ref(SECOND)]
    check_laws(capture.rows(), capture.opened())


def test_a_span_that_became_current_inside_a_range_is_the_parent_from_then_on(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    span, token = object(), object()
    reader.reading = SECOND._replace(span=span)
    capture.recorder.span_attached(span, token)
    capture.end(capture.begin("in the span"))
    reader.reading = FIRST
    capture.recorder.span_detached(token)
    capture.end(capture.begin("after it"))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert (rows["in the span"].parent, rows["in the span"].context) == (0, ref(SECOND))
    assert (rows["after it"].parent, rows["after it"].context) == (outer, ref(FIRST))


def test_spans_that_are_attached_and_never_detached_are_given_up(recorder: Recorder) -> None:
    class Span:
        pass

    def attach_many() -> list[weakref.ref[Span]]:
        spans = [Span() for _ in range(1000)]
        for span in spans:
            recorder.span_attached(span, object())
        return [weakref.ref(span) for span in spans]

    task = contextvars.copy_context()
    left = sum(each() is not None for each in task.run(attach_many))
    assert 0 < left <= 128


def test_a_token_that_has_the_address_of_a_dropped_one_takes_back_nothing_of_it(capture: Capture) -> None:
    reader, span, address = Reader(FIRST), object(), object()
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    capture.recorder.span_attached(span, address)
    reader.reading = SECOND._replace(span=span)
    capture.recorder.context_attached(address)  # baggage, say, with another token at the same address
    capture.recorder.span_detached(address)
    capture.end(capture.begin("in the span"))
    capture.end(outer)
    assert by_name(capture.finish())["in the span"].context == ref(SECOND)


def test_a_span_is_not_kept_alive_by_the_ranges_that_were_in_it(capture: Capture) -> None:
    class Span:
        pass

    span, token = Span(), object()
    capture.recorder.span_attached(span, token)
    capture.end(capture.begin())
    capture.recorder.span_detached(token)
    left = weakref.ref(span)
    del span
    assert left() is None


def test_a_span_that_nobody_told_of_is_older_than_every_range(capture: Capture) -> None:
    outer = attach_within_a_range(capture)
    assert by_name(capture.finish())["inner"].parent == outer


def test_threads_have_contexts_of_their_own(capture: Capture, workers: list[Worker]) -> None:
    current: contextvars.ContextVar[ContextReading | None] = contextvars.ContextVar("current", default=None)
    capture.recorder.set_context_reader(current.get)
    for worker, reading in zip(workers, (FIRST, SECOND, None), strict=True):
        worker.call(current.set, reading)
        worker.call(capture.recorder.context_attached, object())
    for worker in workers:
        worker.call(lambda: capture.end(capture.begin()))
    rows = sorted(capture.finish(), key=lambda row: row.thread.number)
    assert [row.context for row in rows] == [ref(FIRST), ref(SECOND), NO_CONTEXT]


def test_a_switch_of_contextvars_context_is_noticed(capture: Capture) -> None:
    current: contextvars.ContextVar[ContextReading | None] = contextvars.ContextVar("current", default=None)
    capture.recorder.set_context_reader(current.get)
    contexts = {"first": contextvars.copy_context(), "second": contextvars.copy_context()}
    contexts["first"].run(current.set, FIRST)
    contexts["second"].run(current.set, SECOND)
    for name in ("first", "second", "first", "second"):
        contexts[name].run(lambda name=name: capture.end(capture.begin(name)))
    capture.end(capture.begin("outside"))
    seen = [(row.name, row.context) for row in capture.finish()]
    assert seen == [("first", ref(FIRST)), ("second", ref(SECOND))] * 2 + [("outside", NO_CONTEXT)]


def test_a_reader_that_raises_is_no_context(capture: Capture) -> None:
    def broken() -> ContextReading | None:
        raise RuntimeError("the context is broken")

    capture.recorder.set_context_reader(broken)
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.context == NO_CONTEXT


# --- asynchronous ranges
