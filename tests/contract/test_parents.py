"""Whose child a range is: a test for each row of the table in ``native/parents/parents.hpp``
that needs no torch.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from helpers.recording_helpers import ASYNC, Capture, Worker, by_name, parents
from otel_recfn import _native  # to enter a range as sources/steps.py does
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted

TRACER = TracerProvider().get_tracer("parents")


@pytest.fixture
def watched(recorder: Recorder) -> Iterator[Capture]:
    """A capture that sees which span is current."""
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted())
    yield Capture(recorder)
    watcher.disable()


def in_range(capture: Capture, name: str, work: Callable[[], object], flags: int = 0) -> int:
    event_id = capture.begin(name, flags)
    work()
    capture.end(event_id)
    return event_id


def test_in_one_thread_it_is_the_child_of_what_began_last(watched: Capture) -> None:
    in_range(
        watched,
        "outer",
        lambda: in_range(watched, "inner", lambda: in_range(watched, "innermost", int)),
    )
    assert parents(watched.finish()) == {"outer": "", "inner": "outer", "innermost": "inner"}


def test_a_task_is_in_the_range_in_which_it_was_launched(watched: Capture) -> None:
    outer = watched.begin("outer")
    task = contextvars.copy_context()
    task.run(in_range, watched, "first in task", int)
    later = watched.begin("later")
    task.run(in_range, watched, "then in task", int)
    watched.end(later)
    watched.end(outer)
    assert parents(watched.finish()) == {
        "outer": "",
        "first in task": "outer",
        "later": "outer",
        "then in task": "outer",
    }


def test_a_task_is_not_in_what_its_siblings_have_open(watched: Capture) -> None:
    outer = watched.begin("outer")
    tasks = [contextvars.copy_context(), contextvars.copy_context()]
    own = [task.run(watched.begin, f"own {number}") for number, task in enumerate(tasks)]
    for number, task in enumerate(tasks):
        task.run(in_range, watched, f"in {number}", int)
    for task, event_id in zip(tasks, own, strict=True):
        task.run(watched.end, event_id)
    watched.end(outer)
    assert parents(watched.finish()) == {
        "outer": "",
        "own 0": "outer",
        "own 1": "outer",
        "in 0": "own 0",
        "in 1": "own 1",
    }


def test_a_greenlet_is_a_task(watched: Capture) -> None:
    greenlet: Any = pytest.importorskip("greenlet").greenlet

    def work(name: str) -> None:
        event_id = watched.begin(name)
        made[0].parent.switch()
        in_range(watched, f"in {name}", int)
        watched.end(event_id)

    made = [greenlet(work), greenlet(work)]
    for each in made:
        each.gr_context = contextvars.copy_context()
    names = ["one", "other"]
    for each, name in zip(made, names, strict=True):
        each.switch(name)
    for each in made:
        each.switch()
    assert parents(watched.finish()) == {
        "one": "",
        "other": "",
        "in one": "one",
        "in other": "other",
    }


def test_a_task_is_in_the_range_that_another_thread_has_open(
    watched: Capture, workers: list[Worker]
) -> None:
    outer = watched.begin("outer")
    task = contextvars.copy_context()
    workers[0].call(task.run, in_range, watched, "elsewhere", int)
    watched.end(outer)
    rows = by_name(watched.finish())
    assert (rows["elsewhere"].parent, rows["elsewhere"].root) == (outer, outer)
    assert rows["elsewhere"].thread != rows["outer"].thread


def test_a_task_that_outlives_the_range_in_which_it_was_launched_is_in_what_is_around_that(
    watched: Capture,
) -> None:
    outer = watched.begin("outer")
    inner = watched.begin("inner")
    task = contextvars.copy_context()
    watched.end(inner)
    task.run(in_range, watched, "in outer", int)
    watched.end(outer)
    task.run(in_range, watched, "in nothing", int)
    assert parents(watched.finish()) == {
        "outer": "",
        "inner": "outer",
        "in outer": "outer",
        "in nothing": "",
    }


def test_what_a_generator_has_open_encloses_what_its_consumer_begins(watched: Capture) -> None:
    def generate() -> Iterator[None]:
        event_id = watched.begin("generating")
        yield
        watched.end(event_id)

    generator = generate()
    next(generator)
    in_range(watched, "beside it", int)
    list(generator)
    in_range(watched, "after it", int)
    assert parents(watched.finish()) == {
        "generating": "",
        "beside it": "generating",
        "after it": "",
    }


@contextmanager
def launched() -> Iterator[Worker]:
    """A thread that works in a copy of what is current here."""
    worker = Worker(contextvars.copy_context())
    yield worker
    worker.stop()


def test_a_range_that_another_thread_has_ended_encloses_nothing_any_more(watched: Capture) -> None:
    outer = watched.begin("outer")
    inner = watched.begin("inner")
    with launched() as worker:
        worker.call(in_range, watched, "in inner", int)
        watched.end(inner)
        worker.call(in_range, watched, "in outer", int)
        watched.end(outer)
        worker.call(in_range, watched, "in nothing", int)
    assert parents(watched.finish()) == {
        "outer": "",
        "inner": "outer",
        "in inner": "inner",
        "in outer": "outer",
        "in nothing": "",
    }


def test_a_range_that_has_ended_elsewhere_is_not_around_the_span_in_it(watched: Capture) -> None:
    def launch() -> None:
        with launched() as worker:
            worker.call(in_range, watched, "before", int)
            watched.end(inner)
            worker.call(in_range, watched, "after", int)

    outer = watched.begin("outer")
    inner = watched.begin("inner")
    span_id = in_span(launch)
    watched.end(outer)
    rows = watched.finish()
    assert parents(rows) == {"outer": "", "inner": "outer", "before": "inner", "after": "outer"}
    assert [by_name(rows)[name].context.span_id for name in ("before", "after")] == [span_id] * 2


def test_a_range_that_is_ended_in_another_thread_encloses_nothing_in_its_own(
    watched: Capture, workers: list[Worker]
) -> None:
    """Nor does what a sibling task began there before it."""

    def begin_sibling() -> None:
        sibling.append(watched.begin("sibling"))

    sibling: list[int] = []
    outer = watched.begin("outer")
    with launched() as worker:
        worker.call(contextvars.copy_context().run, begin_sibling)
        inner = worker.call(watched.begin, "inner")
        workers[0].call(watched.end, inner)
        worker.call(in_range, watched, "after", int)
        worker.call(watched.end, sibling[0])
    watched.end(outer)
    assert parents(watched.finish()) == {
        "outer": "",
        "sibling": "outer",
        "inner": "outer",
        "after": "outer",
    }


def test_an_asynchronous_range_that_ends_elsewhere_encloses_nothing_where_it_was_entered(
    watched: Capture,
) -> None:
    waiting = watched.begin("waiting", int(ASYNC))
    with launched() as worker:
        worker.call(_native.enter, waiting)
        worker.call(in_range, watched, "in it", int)
        watched.end(waiting)
        worker.call(in_range, watched, "after it", int)
    assert parents(watched.finish()) == {"waiting": "", "in it": "waiting", "after it": ""}


def in_span(call: Callable[[], object]) -> int:
    """Call it in a span of its own, whose id is returned."""
    span = TRACER.start_span("span")
    token = otel_context.attach(trace.set_span_in_context(span))
    call()
    otel_context.detach(token)
    return span.get_span_context().span_id


def test_a_span_that_is_attached_inside_comes_between(watched: Capture) -> None:
    def attach_inside() -> None:
        spans.append(
            in_span(lambda: in_range(watched, "in span", lambda: in_range(watched, "deeper", int)))
        )
        in_range(watched, "after it", int)

    spans: list[int] = []
    outer = in_range(watched, "outer", attach_inside)
    rows = by_name(watched.finish())
    inner = rows["in span"].event_id
    assert parents([*rows.values()]) == {
        "outer": "",
        "in span": "outer",
        "deeper": "in span",
        "after it": "outer",
    }
    assert (rows["in span"].root, rows["in span"].context.span_id) == (inner, spans[0])
    assert (rows["deeper"].root, rows["deeper"].context.span_id) == (inner, spans[0])
    assert (rows["after it"].root, rows["after it"].context.span_id) == (outer, 0)


def test_a_range_that_has_ended_is_not_around_the_span_in_it(watched: Capture) -> None:
    def end_in_span() -> None:
        in_range(watched, "before", int)
        watched.end(inner)
        in_range(watched, "after", int)

    outer = watched.begin("outer")
    inner = watched.begin("inner")
    in_span(end_in_span)
    watched.end(outer)
    in_span(lambda: in_range(watched, "later", int))
    assert parents(watched.finish()) == {
        "outer": "",
        "inner": "outer",
        "before": "inner",
        "after": "outer",
        "later": "",
    }


def test_a_span_in_the_range_of_a_task_has_that_around_it_in_other_tasks_and_threads(
    watched: Capture, workers: list[Worker]
) -> None:
    def launch() -> None:
        task = contextvars.copy_context()
        beside = watched.begin("beside")
        task.run(in_range, watched, "in task", int)
        workers[0].call(task.run, in_range, watched, "elsewhere", int)
        watched.end(beside)

    in_range(watched, "outer", lambda: in_span(launch))
    rows = watched.finish()
    assert parents(rows) == {
        "outer": "",
        "beside": "outer",
        "in task": "outer",
        "elsewhere": "outer",
    }
    assert {row.root == row.event_id for row in rows} == {True}


def test_an_asynchronous_range_is_around_what_has_entered_it(watched: Capture) -> None:
    waiting = watched.begin("waiting", int(ASYNC))
    in_range(watched, "beside it", int)
    task = contextvars.copy_context()
    task.run(_native.enter, waiting)
    task.run(in_range, watched, "in it", int)
    watched.end(waiting)
    assert parents(watched.finish()) == {"waiting": "", "beside it": "", "in it": "waiting"}
