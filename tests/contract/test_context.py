"""What was current when a range began outside every other, and asynchronous ranges."""

from __future__ import annotations

import contextvars

from recording_helpers import ASYNC, Capture, Reader, Worker, by_name, check_laws

from otel_recfn.model.batch import NO_CONTEXT, SpanContextRef
from otel_recfn.recording.protocol import ContextReading

FLAG = int(ASYNC)
FIRST = ContextReading(trace_id=(1 << 127) + 5, span_id=(1 << 63) + 7, flags=1, enclosing=0)
SECOND = ContextReading(trace_id=3, span_id=4, flags=0, enclosing=0)


def ref(reading: ContextReading) -> SpanContextRef:
    return SpanContextRef(reading.trace_id, reading.span_id, reading.flags)


def test_every_row_carries_the_context_of_its_outermost_range(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    reader.reading = SECOND
    capture.recorder.context_changed()
    capture.end(capture.begin("inner"))
    capture.end(outer)
    capture.end(capture.begin("next"))
    capture.finish()
    rows = by_name(capture.rows())
    assert rows["outer"].context == rows["inner"].context == ref(FIRST)
    assert rows["next"].context == ref(SECOND)
    announced = [capture.batches[0].contexts[opened.context] for opened in capture.opened()]
    assert announced == [ref(FIRST), ref(SECOND)]
    check_laws(capture.rows(), capture.opened())


def test_no_reading_is_no_context(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    capture.end(capture.begin("with"))
    reader.reading = None
    capture.recorder.context_changed()
    capture.end(capture.begin("without"))
    rows = by_name(capture.finish())
    assert (rows["with"].context, rows["without"].context) == (ref(FIRST), NO_CONTEXT)


def test_suppression_without_a_span_is_a_context(capture: Capture) -> None:
    capture.recorder.set_context_reader(Reader(ContextReading(0, 0, 2, 0)))
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.context == SpanContextRef(0, 0, 2)


def test_the_context_is_read_only_before_ranges_outside_others(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin()
    calls = len(reader.threads)
    for _ in range(10):
        capture.recorder.context_changed()
        capture.end(capture.begin())
    assert len(reader.threads) == calls
    capture.end(outer)


def test_the_reader_runs_in_the_recording_thread(capture: Capture, workers: list[Worker]) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    workers[0].call(lambda: capture.end(capture.begin()))
    assert set(reader.threads) == {workers[0].thread.ident}
    [row] = capture.finish()
    assert row.context == ref(FIRST)


def test_threads_have_contexts_of_their_own(capture: Capture, workers: list[Worker]) -> None:
    current: contextvars.ContextVar[ContextReading | None] = contextvars.ContextVar("current", default=None)
    capture.recorder.set_context_reader(current.get)
    for worker, reading in zip(workers, (FIRST, SECOND, None), strict=True):
        worker.call(current.set, reading)
        worker.call(capture.recorder.context_changed)
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


def test_without_a_reader_there_is_no_context(capture: Capture) -> None:
    capture.recorder.set_context_reader(Reader(FIRST))
    capture.end(capture.begin("with"))
    capture.recorder.set_context_reader(None)
    capture.recorder.context_changed()
    capture.end(capture.begin("without"))
    rows = by_name(capture.finish())
    assert (rows["with"].context, rows["without"].context) == (ref(FIRST), NO_CONTEXT)


def test_the_context_outlives_a_drain(capture: Capture) -> None:
    capture.recorder.set_context_reader(Reader(FIRST))
    outer = capture.begin("outer")
    capture.drain()
    capture.end(capture.begin("inner"))
    capture.drain()
    capture.end(outer)
    capture.end(capture.begin("next"))
    capture.finish()
    assert [row.context for row in capture.rows()] == [ref(FIRST)] * 3


def test_many_contexts(capture: Capture) -> None:
    reader = Reader()
    capture.recorder.set_context_reader(reader)
    for span_id in range(1, 20_000):
        reader.reading = ContextReading(1, span_id, 1, 0)
        capture.recorder.context_changed()
        capture.end(capture.begin())
        if span_id % 1000 == 0:
            capture.drain()
    capture.finish()
    assert [row.context.span_id for row in capture.rows()] == list(range(1, 20_000))


# --- asynchronous ranges


def test_an_async_range_encloses_nothing_by_its_place_on_the_stack_and_what_is_below_it_goes_on_enclosing(
    capture: Capture,
) -> None:
    outer = capture.begin("outer")
    task = capture.begin("task", FLAG)
    inner = capture.begin("inner")
    leaf = capture.begin("leaf")
    for event_id in (leaf, inner, task):
        capture.end(event_id)
    capture.end(capture.begin("after"))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert rows["task"].parent == outer
    assert (rows["inner"].parent, rows["inner"].root) == (outer, outer)
    assert (rows["leaf"].parent, rows["leaf"].root) == (inner, outer)
    assert rows["after"].parent == outer
    check_laws(capture.rows(), capture.opened())


def test_the_context_says_what_an_async_range_encloses(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    task = capture.begin("task", FLAG)
    reader.reading = FIRST._replace(enclosing=task)
    capture.recorder.context_changed()
    inner = capture.begin("inner")
    leaf = capture.begin("leaf")
    for event_id in (leaf, inner, task, outer):
        capture.end(event_id)
    rows = by_name(capture.finish())
    assert (rows["inner"].parent, rows["leaf"].parent) == (task, inner)
    assert {row.root for row in rows.values()} == {outer}
    assert {row.context for row in rows.values()} == {ref(FIRST)}
    assert [opened.name for opened in capture.opened()] == ["outer"]


def test_async_ranges_in_turns(capture: Capture) -> None:
    """Two tasks, each in an async range of its own, take turns on the thread."""
    reader = Reader()
    capture.recorder.set_context_reader(reader)

    def switch_to(enclosing: int) -> None:
        reader.reading = ContextReading(0, 0, 0, enclosing)
        capture.recorder.context_changed()

    switch_to(0)
    first = capture.begin("first", FLAG)
    second = capture.begin("second", FLAG)
    for turn in range(3):
        for task, name in ((first, "in first"), (second, "in second")):
            switch_to(task)
            capture.end(capture.begin(f"{name} {turn}"))
    capture.end(first)
    switch_to(second)
    capture.end(capture.begin("in second 3"))
    capture.end(second)
    switch_to(0)
    capture.end(capture.begin("after"))
    rows = capture.finish()
    assert {row.parent for row in rows if row.name.startswith("in first")} == {first}
    assert {row.parent for row in rows if row.name.startswith("in second")} == {second}
    assert [row.parent for row in rows if row.name in ("first", "second", "after")] == [0, 0, 0]


def test_an_enclosing_range_that_is_gone_is_still_the_parent(capture: Capture) -> None:
    reader = Reader()
    capture.recorder.set_context_reader(reader)
    task = capture.begin("task", FLAG)
    capture.end(task)
    reader.reading = ContextReading(0, 0, 0, task)
    capture.recorder.context_changed()
    capture.end(capture.begin("late"))
    rows = by_name(capture.finish())
    assert (rows["late"].parent, rows["late"].root) == (task, task)


def test_an_enclosing_range_of_another_thread(capture: Capture, workers: list[Worker]) -> None:
    task = capture.begin("task", FLAG)
    capture.drain()
    capture.recorder.set_context_reader(Reader(ContextReading(0, 0, 0, task)))
    workers[0].call(lambda: capture.end(capture.begin("in task")))
    capture.drain()
    capture.end(task)
    capture.finish()
    rows = by_name(capture.rows())
    assert (rows["in task"].parent, rows["in task"].root) == (task, task)
    assert rows["in task"].thread.number != rows["task"].thread.number
