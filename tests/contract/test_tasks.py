"""The parent of a range is what began last, as its own task sees it: random programs against a
model.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import greenlet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext

from helpers.example_counts import examples
from helpers.recording_helpers import ASYNC, Capture, Worker, check_laws, reset, workers_of
from otel_recfn import _native  # to enter a range as sources/steps.py does
from otel_recfn.model.batch import Event
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted
from otel_recfn.sources.range_spans import ExposedRanges
from otel_recfn.support.span_ids import span_id

TRACER = TracerProvider().get_tracer("programs")


@dataclass(eq=False)
class Began:
    """A range or a span of the program."""

    event_id: int = 0
    span: Any = None
    parent: Began | None = None
    around: Began | None = None
    """Of a range the innermost range around it, also where it is in a span in that."""
    ended: bool = False

    @property
    def span_id(self) -> int:
        return (
            self.span.get_span_context().span_id
            if self.span is not None
            else span_id(self.event_id)
        )


@dataclass(eq=False)
class Attached:
    began: Began
    token: Any
    before: Began | None


@dataclass(eq=False)
class Task:
    run: Callable[[Callable[[], Any]], Any]
    view: list[Began] = field(default_factory=list)
    current: Began | None = None
    attached: list[Attached] = field(default_factory=list)

    def latest(self) -> Began | None:
        """What a range or a span that begins now lies in."""
        for began in reversed(self.view):
            if began.span is not None and began is self.current:
                return began
            if began.span is None and not began.ended:
                return began
        return self.current

    def innermost_range(self) -> Began | None:
        """What a range that begins now lies in, spans left out."""
        latest = self.latest()
        if latest is None or latest.span is None:
            return latest
        before = self.view[: self.view.index(latest)] if latest in self.view else []
        return next(
            (began for began in reversed(before) if began.span is None and not began.ended), None
        )


class Program:
    """Takes steps on a recorder, and on the model."""

    def __init__(self, capture: Capture, workers: list[Worker]) -> None:
        self.capture, self.workers = capture, workers
        self.tasks = [Task(_on_thread(worker, contextvars.Context())) for worker in workers]
        self.launched: list[Worker] = []
        """The threads that are in one task's context all the while."""
        self.ranges: list[Began] = []
        self.spans: list[Began] = []

    def begin(self, task: Task, *, is_async: bool = False) -> None:
        parent = task.latest()
        around = task.innermost_range()

        def run() -> int:
            event_id = self.capture.begin("range", int(ASYNC) if is_async else 0)
            if is_async:
                _native.enter(event_id)
            return event_id

        began = Began(task.run(run), None, parent, around)
        task.view.append(began)
        self.ranges.append(began)

    def end(self, task: Task, began: Began) -> None:
        task.run(lambda: self.capture.end(began.event_id))
        began.ended = True

    def open_span(self, task: Task) -> None:
        parent = task.latest()

        def run() -> Any:
            span = TRACER.start_span("span")
            return span, otel_context.attach(trace.set_span_in_context(span))

        span, token = task.run(run)
        began = Began(0, span, parent)
        assert (span.parent.span_id if span.parent else 0) == (parent.span_id if parent else 0)
        self.spans.append(began)
        task.attached.append(Attached(began, token, task.current))
        task.view.append(began)
        task.current = began

    def close_span(self, task: Task, which: int) -> None:
        attached = task.attached.pop(which)
        task.run(lambda: otel_context.detach(attached.token))
        task.current = attached.before

    def launch(self, task: Task, worker: Worker, kind: str) -> None:
        context = task.run(contextvars.copy_context)
        if kind == "thread":
            self.launched.append(Worker(context))
            run: Callable[[Callable[[], Any]], Any] = self.launched[-1].call
        else:
            run = (_in_greenlet if kind == "greenlet" else _on_thread)(worker, context)
        self.tasks.append(Task(run, list(task.view), task.current))

    def check(self) -> None:
        for began in self.ranges:
            if not began.ended:
                self.end(self.tasks[0], began)
        for worker in self.launched:
            worker.stop()
        self.capture.finish()
        rows = {row.event_id: row for row in self.capture.rows()}
        assert set(rows) == {began.event_id for began in self.ranges}
        for began in self.ranges:
            _check_row(rows[began.event_id], began, rows)
        for began in self.spans:
            _check_trace(began, rows)
        check_laws(list(rows.values()))


def _check_row(row: Event, began: Began, rows: dict[int, Event]) -> None:
    parent = began.parent
    assert row.parent == (began.around.event_id if began.around is not None else 0)
    if parent is not None and parent.span is None:
        assert (row.root, row.context) == (rows[row.parent].root, rows[row.parent].context)
        return
    assert row.root == row.event_id
    own = parent.span.get_span_context() if parent is not None else trace.INVALID_SPAN_CONTEXT
    assert (row.context.trace_id, row.context.span_id) == (own.trace_id, own.span_id)


def _check_trace(began: Began, rows: dict[int, Event]) -> None:
    """A span inside a range is in the trace that the range's row comes to, or in that of its
    outermost range.
    """
    if began.parent is not None and began.parent.span is None:
        row = rows[began.parent.event_id]
        assert began.span.get_span_context().trace_id == (row.context.trace_id or row.root)


def _on_thread(worker: Worker, context: contextvars.Context) -> Callable[[Callable[[], Any]], Any]:
    return lambda step: worker.call(context.run, step)


def _in_greenlet(
    worker: Worker, context: contextvars.Context
) -> Callable[[Callable[[], Any]], Any]:
    """A greenlet that takes one step at each switch, its context being entered all the while."""

    def work(step: Callable[[], Any]) -> None:
        while True:
            step = made.parent.switch(step())

    def make() -> Any:
        made = greenlet.greenlet(work)
        made.gr_context = context
        return made

    made = worker.call(make)
    return lambda step: worker.call(made.switch, step)


PLACE = st.integers(0, 1000)
KIND = st.sampled_from(
    [
        *("begin", "begin", "begin async", "end", "end last"),
        *("open span", "open span", "close span", "close last"),
        *("task", "greenlet", "thread", "drain"),
    ]
)
FEW = st.integers(0, 3)
FEW_KINDS = st.sampled_from(["begin", "end", "end", "open span", "thread"])
STEPS = st.lists(st.tuples(KIND, PLACE, PLACE), max_size=40) | st.lists(
    st.tuples(FEW_KINDS, FEW, FEW), max_size=20
)
"""Of all kinds; and some in which threads stay where they are while what is around them ends."""


ALL_SHOWN = ExposedRanges(
    takes=lambda scope, source: True,
    had_begun=lambda serial, event_id: False,
    has_target=lambda: True,
    trace_of=lambda root: SpanContext(root, 1, False),
    is_outside=lambda trace_id, span_id: False,
    start_step=lambda name, number, code, start_ns, requests: None,
    note_parent_span=lambda trace_id, span_id, span: None,
)
"""Every range becomes a span, those without one around them each in a trace that is theirs."""


@pytest.fixture
def watched(recorder: Recorder) -> Iterator[Recorder]:
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted(exposed=ALL_SHOWN))
    yield recorder
    watcher.disable()


def take(program: Program, step: str, one: int, other: int) -> None:
    task = program.tasks[one % len(program.tasks)]
    open_ranges = [began for began in program.ranges if not began.ended]
    if step.startswith("begin"):
        program.begin(task, is_async=step == "begin async")
    elif step.startswith("end") and open_ranges:
        program.end(task, open_ranges[-1 if step == "end last" else other % len(open_ranges)])
    elif step == "open span":
        program.open_span(task)
    elif step.startswith("close") and task.attached:
        program.close_span(task, -1 if step == "close last" else other % len(task.attached))
    elif step in ("task", "greenlet", "thread"):
        program.launch(task, program.workers[other % len(program.workers)], step)
    elif step == "drain":
        program.capture.drain()


DETACHED_OUT_OF_ORDER = [
    "begin async",
    "begin",
    "open span",
    "open span",
    "close span",
    "begin",
    "open span",
]
"""The task's newest entry is a span that isn't current any more, and what began last lies in a
range that lies in another.
"""


ENDED_ELSEWHERE = [
    ("begin", 0, 0),
    ("thread", 0, 0),
    ("begin", 2, 0),
    ("end last", 2, 0),
    ("end", 0, 0),
    ("begin", 2, 0),
]
"""A thread goes on after the range in which it was launched has ended."""


@examples(150)
@given(steps=STEPS)
@example(steps=ENDED_ELSEWHERE)
@example(steps=[(step, 0, 0) for step in DETACHED_OUT_OF_ORDER])
def test_whatever_tasks_threads_and_greenlets_do(
    watched: Recorder, steps: list[tuple[str, int, int]]
) -> None:
    reset_recording(watched)
    with workers_of(2) as workers:
        program = Program(Capture(watched), workers)
        for step, one, other in steps:
            take(program, step, one, other)
        program.check()


def reset_recording(recorder: Recorder) -> None:
    recorder.stop()
    recorder.drain(close_open=True)


def test_a_context_that_is_entered_inside_another_is_inside_its_ranges(watched: Recorder) -> None:
    capture = Capture(watched)
    outer = capture.begin("outer")
    contextvars.copy_context().run(lambda: capture.end(capture.begin("inner")))
    capture.end(outer)
    assert {row.name: row.parent for row in capture.finish()} == {"inner": outer, "outer": 0}
    reset(watched)
