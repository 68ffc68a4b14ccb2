"""The parent of a range is what began last, as its own task sees it: random programs against a model."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext
from recording_helpers import Capture, reset, workers_of
from task_programs import Program

from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted
from otel_recfn.sources.range_spans import ShownRanges
from thoroughness import examples

PLACE = st.integers(0, 1000)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin", "begin async", "end", "end last", "open span", "open span", "close span", "close last", "task",
             "greenlet", "drain"]
        ),
        PLACE,
        PLACE,
    ),
    max_size=40,
)  # fmt: skip


class AllTraces:
    """Every range becomes a span, those without one around them each in a trace that is theirs."""

    def has_target(self) -> bool:
        return True

    def lacks_provider(self) -> bool:
        return False

    def trace_of(self, root: int) -> SpanContext:
        return SpanContext(root, 1, False)

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        pass

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        return False


@pytest.fixture
def watched(recorder: Recorder) -> Iterator[Recorder]:
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted(shown=ShownRanges(lambda scope, source: True, AllTraces())))
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
    elif step in ("task", "greenlet"):
        program.launch(task, program.workers[other % len(program.workers)], in_greenlet=step == "greenlet")
    elif step == "drain":
        program.capture.drain()


DETACHED_OUT_OF_ORDER = ["begin async", "begin", "open span", "open span", "close span", "begin", "open span"]
"""The task's newest entry is a span that isn't current any more, and what began last lies in a range that lies in another."""


@examples(150)
@given(steps=STEPS)
@example(steps=[(step, 0, 0) for step in DETACHED_OUT_OF_ORDER])
def test_whatever_tasks_threads_and_greenlets_do(watched: Recorder, steps: list[tuple[str, int, int]]) -> None:
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
