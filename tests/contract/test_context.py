"""What was current when a range began outside every other, and asynchronous ranges."""

from __future__ import annotations

import contextvars
import weakref

import pytest
from recording_helpers import ASYNC, Capture, Reader, Worker, by_name, check_laws

from otel_recfn.model.batch import NO_CONTEXT, SpanContextRef
from otel_recfn.recording.protocol import ContextReading, Recorder

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
    capture.recorder.context_attached(object())
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
    capture.recorder.context_attached(object())
    capture.end(capture.begin("without"))
    rows = by_name(capture.finish())
    assert (rows["with"].context, rows["without"].context) == (ref(FIRST), NO_CONTEXT)


def test_suppression_without_a_span_is_a_context(capture: Capture) -> None:
    capture.recorder.set_context_reader(Reader(ContextReading(0, 0, 2, 0)))
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.context == SpanContextRef(0, 0, 2)


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


def test_tasks_that_launch_tasks_inside_ranges_keep_few_of_their_spans(capture: Capture) -> None:
    class Span:
        pass

    spans: list[weakref.ref[Span]] = []

    def step() -> contextvars.Context:
        span = Span()
        spans.append(weakref.ref(span))
        capture.recorder.span_attached(span, object())
        range_ = capture.begin()
        child = contextvars.copy_context()
        capture.end(range_)
        return child

    task = contextvars.copy_context()
    for _ in range(2000):
        task = task.run(step)
    assert sum(each() is not None for each in spans) <= 200


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


def test_a_task_that_never_detaches_while_its_ranges_overlap_keeps_few_spans(capture: Capture) -> None:
    class Span:
        pass

    def live() -> list[weakref.ref[Span]]:
        spans, before = [], 0
        for _ in range(2000):
            span = Span()
            spans.append(weakref.ref(span))
            capture.recorder.span_attached(span, object())
            now = capture.begin()
            capture.end(before)  # each range ends inside the next one
            before = now
        return spans

    task = contextvars.copy_context()
    spans = task.run(live)
    assert sum(each() is not None for each in spans) <= 200


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
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    reader.reading = SECOND
    capture.recorder.context_attached(object())
    capture.end(capture.begin("inner"))
    capture.end(outer)
    assert by_name(capture.finish())["inner"].parent == outer


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


def test_without_a_reader_there_is_no_context(capture: Capture) -> None:
    capture.recorder.set_context_reader(Reader(FIRST))
    capture.end(capture.begin("with"))
    capture.recorder.set_context_reader(None)
    capture.recorder.context_attached(object())
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
        capture.recorder.context_attached(object())
        capture.end(capture.begin())
        if span_id % 1000 == 0:
            capture.drain()
    capture.finish()
    assert [row.context.span_id for row in capture.rows()] == list(range(1, 20_000))


# --- asynchronous ranges


def test_an_async_range_that_no_task_entered_encloses_nothing(
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


def test_an_async_range_encloses_what_begins_while_it_is_entered(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    task = capture.begin("task", FLAG)
    entered = capture.recorder.enter(task)
    assert capture.recorder.is_in(entered)
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
    tasks = {name: contextvars.copy_context() for name in ("first", "second")}
    ids = {}
    for name, task in tasks.items():
        ids[name] = task.run(capture.begin, name, FLAG)
        task.run(capture.recorder.enter, ids[name])
    for turn in range(3):
        for name, task in tasks.items():
            task.run(lambda name=name, turn=turn: capture.end(capture.begin(f"in {name} {turn}")))
    tasks["first"].run(capture.end, ids["first"])
    tasks["second"].run(lambda: capture.end(capture.begin("in second 3")))
    capture.end(capture.begin("outside"))
    tasks["second"].run(capture.end, ids["second"])
    rows = capture.finish()
    assert {row.parent for row in rows if row.name.startswith("in first")} == {ids["first"]}
    assert {row.parent for row in rows if row.name.startswith("in second")} == {ids["second"]}
    assert [row.parent for row in rows if row.name in ("first", "second", "outside")] == [0, 0, 0]


def test_what_a_task_left_it_is_not_in(capture: Capture) -> None:
    task = capture.begin("task", FLAG)
    entered = capture.recorder.enter(task)
    capture.recorder.leave(entered)
    assert not capture.recorder.is_in(entered)
    capture.end(capture.begin("after"))
    capture.end(task)
    assert capture.recorder.enter(task) is None
    assert by_name(capture.finish())["after"].parent == 0


def test_something_newer_goes_on_enclosing(capture: Capture) -> None:
    task = capture.begin("task", FLAG)
    newer = capture.begin("newer")
    assert capture.recorder.enter(task) is None
    capture.end(capture.begin("inner"))
    capture.end(newer)
    assert capture.recorder.enter(task) is not None
    capture.end(task)
    assert by_name(capture.finish())["inner"].parent == newer


def test_a_range_whose_span_is_current_is_the_parent_also_when_it_is_gone(capture: Capture) -> None:
    outer = capture.begin("outer")
    task = capture.begin("task")
    capture.end(task)
    capture.end(outer)
    capture.recorder.set_context_reader(Reader(FIRST._replace(enclosing=task, root=outer)))
    capture.recorder.context_attached(object())
    capture.end(capture.begin("late"))
    rows = by_name(capture.finish())
    assert (rows["late"].parent, rows["late"].root, rows["late"].context) == (task, outer, ref(FIRST))


@pytest.mark.parametrize("flags", [0, FLAG])
def test_a_range_of_the_thread_that_launched_the_work(capture: Capture, workers: list[Worker], flags: int) -> None:
    capture.recorder.set_context_reader(Reader(FIRST))
    outer = capture.begin("outer")
    task = capture.begin("task", flags)
    if flags:
        capture.recorder.enter(task)
    launched = contextvars.copy_context()
    capture.drain()
    workers[0].call(launched.run, lambda: capture.end(capture.begin("in task")))
    capture.drain()
    capture.end(task)
    workers[1].call(launched.run, lambda: capture.end(capture.begin("after task")))
    capture.end(outer)
    workers[1].call(launched.run, lambda: capture.end(capture.begin("after outer")))
    capture.finish()
    rows = by_name(capture.rows())
    assert (rows["in task"].parent, rows["in task"].root, rows["in task"].context) == (task, outer, ref(FIRST))
    assert rows["in task"].thread.number != rows["task"].thread.number
    assert (rows["after task"].parent, rows["after task"].root) == (outer, outer)
    assert (rows["after outer"].parent, rows["after outer"].context) == (0, ref(FIRST))


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
