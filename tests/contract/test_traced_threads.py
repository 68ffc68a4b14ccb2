"""The tracer of Python calls: calls that have a place of their own for speed, and threads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from helpers.calling_program import Node, Traced, by_end, short, tree
from helpers.recording_helpers import check_laws
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import _native, record_function  # to trace threads as sources/calls.py does
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag
from otel_recfn.recording.recorder import Recorder
from otel_recfn.support.forks import OwnThread


def leaf() -> int:
    return len("leaf")


def run_in(thread: threading.Thread) -> None:
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_thread_has_its_name(traced: Traced) -> None:
    rows = traced.run(lambda: run_in(threading.Thread(target=leaf, name="worker of the test")))
    [row] = [row for row in rows if short(row) == "leaf"]
    assert row.thread.name == "worker of the test"
    assert {short(row) for row in rows} >= {"_bootstrap", "_bootstrap_inner", "run"}


def test_threads_of_ours_are_not_traced(traced: Traced) -> None:
    rows = traced.run(lambda: run_in(OwnThread(leaf, "otel-recfn of the test")))
    assert "run_in" in {short(row) for row in rows}
    assert not {row.thread.name for row in rows if row.thread.name.startswith("otel-recfn")}
    assert not [row for row in rows if short(row) in ("leaf", "_bootstrap", "_bootstrap_inner")]


class SeenInPreparation(threading.Thread):
    """A thread to which a drain gives the profile function before the thread itself sets it."""

    def __hash__(self) -> int:  # asked by ``threading`` as it makes the thread known
        if threading.get_ident() == self.ident:
            _native.profile_threads()
        return id(self)


@pytest.mark.skipif(
    hasattr(sys, "monitoring"), reason="a profile function traces before CPython 3.12"
)
def test_a_thread_doesnt_show_that_the_tracer_sets_its_profile_function(traced: Traced) -> None:
    threads = (
        threading.Thread(target=leaf, name="usual"),
        SeenInPreparation(target=leaf, name="seen in preparation"),
    )
    rows = traced.run(lambda: [run_in(thread) for thread in threads])
    usual, seen = [[short(call) for call in calls_in(rows, thread.name)] for thread in threads]
    assert usual[:4] == ["_bootstrap", "_bootstrap_inner", "run", "leaf"]
    assert seen == usual


class Blocked:
    """A thread that waits from before tracing begins until it is told to go on."""

    def __init__(self) -> None:
        self._at_rest = threading.Event()
        self._go_on = threading.Lock()
        self.done = threading.Event()
        self._go_on.acquire()
        self._thread = threading.Thread(target=self.runs, name="blocked")

    def runs(self) -> None:
        self.waits()
        leaf()
        self.done.set()

    def waits(self) -> None:
        self._at_rest.set()
        self._go_on.acquire()

    def start(self) -> None:
        self._thread.start()
        assert self._at_rest.wait(PATIENCE_S)

    def go_on(self) -> None:
        self._go_on.release()
        assert self.done.wait(PATIENCE_S)

    def end(self) -> None:
        if not self.done.is_set():
            self.go_on()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def blocked(recorder: Recorder) -> Iterator[Blocked]:
    with started() as thread:
        yield thread


@contextmanager
def started() -> Iterator[Blocked]:
    made = Blocked()
    made.start()
    try:
        yield made
    finally:
        made.end()


def calls_in(rows: list[Event], thread: str) -> list[Event]:
    return sorted([row for row in rows if row.thread.name == thread], key=lambda row: row.event_id)


def check_stack(calls: list[Event]) -> None:
    """It stands in each other, from before the first call of the program on."""
    assert [short(call) for call in calls] == [
        "_bootstrap",
        "_bootstrap_inner",
        "run",
        "runs",
        "waits",
    ]
    assert [call.parent for call in calls] == [0, *[call.event_id for call in calls[:-1]]]
    assert [call.caller for call in calls] == [0, *[call.event_id for call in calls[:-1]]]


def marked() -> None:
    """Its begin is a moment."""


def test_a_thread_that_is_blocked_all_the_time_has_its_stack_from_the_start(
    traced: Traced, blocked: Blocked
) -> None:
    rows = traced.run(marked)
    calls = calls_in(rows, "blocked")
    check_stack(calls)
    [moment] = [row for row in rows if short(row) == "marked"]
    assert all(call.start_ns <= moment.start_ns and call.end_ns >= moment.end_ns for call in calls)
    assert all(call.flags & EventFlag.PARTIAL for call in calls)
    check_laws(sorted(rows, key=lambda row: (row.end_ns, -row.event_id)))


def test_a_thread_that_is_blocked_at_the_start_goes_on_in_its_stack(
    traced: Traced, blocked: Blocked
) -> None:
    rows = traced.run(lambda: (marked(), blocked.go_on()))
    calls = calls_in(rows, "blocked")
    check_stack(calls[:5])
    [moment] = [row for row in rows if short(row) == "marked"]
    assert all(call.start_ns <= moment.start_ns <= call.end_ns for call in calls[:5])
    waits = calls[4]
    [later] = [call for call in calls if short(call) == "leaf"]
    assert later.parent == calls[3].event_id
    assert waits.end_ns <= later.start_ns
    assert not waits.flags & EventFlag.PARTIAL


TIMES = 3
"""The first time a function gets its name, which takes another way."""


LEN = Node("<built-in function len>")


class Waiting:
    """A thread that calls C functions, and then waits in one until it is let go."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._waits = threading.Event()
        self._gate.acquire()
        self._thread = threading.Thread(target=self._program)

    def __enter__(self) -> Waiting:
        self._thread.start()
        assert self._waits.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def _program(self) -> None:
        gate = self._gate
        for _ in range(TIMES):
            gate.acquire(blocking=False)
        self._wait(gate.acquire)
        self.after()

    def _wait(self, acquire: Callable[[], Any]) -> None:
        self._waits.set()
        acquire()

    def after(self) -> int:
        return len("after")

    def let_go(self) -> None:
        if self._thread.is_alive():
            self._gate.release()
        self._thread.join(PATIENCE_S)


def waits(rows: list[Event]) -> list[Event]:
    """The calls in which the thread waits."""
    enclosing = {row.event_id for row in rows if short(row) == "_wait"}
    return [row for row in rows if "acquire" in row.name and row.parent in enclosing]


def test_it_is_told_as_open_by_a_drain_and_closes_later(traced: Traced) -> None:
    running = traced.begin()
    drained: list[Event] = []

    def is_told() -> bool:
        batch = traced.drain()
        rows = list(batch.events())
        drained.extend(rows[: batch.closed])
        return bool(waits(rows[batch.closed :]))

    with Waiting():
        wait_until(is_told)
    [waited] = waits(drained + list(running.stop().sink.events()))
    assert not waited.flags & EventFlag.PARTIAL


def test_it_ends_with_the_tracer_where_another_thread_stops_it(traced: Traced) -> None:
    first = traced.begin()
    with Waiting() as waiting:
        first.stop()
        rows = list(first.sink.events())
        check_laws(by_end(rows))
        assert len(waits(rows)) == 1
        second = traced.begin()
        waiting.let_go()
        second.stop()
    later = list(second.sink.events())
    check_laws(by_end(later))
    assert not {row.event_id for row in later} & {row.event_id for row in rows}
    assert tree(later, "after") == [Node("after", (LEN,))]


def test_a_range_begins_in_one_and_ends_in_another(traced: Traced, recorder: Recorder) -> None:
    def program() -> None:
        for _ in range(TIMES):
            begun = record_function("range")
            next(iter(begun.__enter__, None))
            len("in range")
            begun.__exit__(None, None, None)
            len("after")

    rows = traced.run(program)
    check_laws(by_end(rows))
    by_id = {row.event_id: row for row in rows}
    lengths = sorted([row for row in rows if short(row) == LEN.name], key=lambda row: row.event_id)
    parents = [short(by_id[row.parent]) for row in lengths if row.parent in by_id]
    assert [name for name in parents if name in ("range", "program")] == [
        "range",
        "program",
    ] * TIMES
    assert not [row for row in rows if row.name == "range" and row.flags & EventFlag.PARTIAL]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_it(traced: Traced) -> None:
    def program() -> None:
        for _ in range(TIMES):
            child = os.fork()
            if not child:
                for _ in range(TIMES):
                    len("child")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            len("parent")

    rows = traced.run(program)
    check_laws(by_end(rows))
    [found] = tree(rows, "program")
    in_turn = ["<built-in function fork>", "<built-in function waitpid>", LEN.name]
    assert [node.name for node in found.below] == in_turn * TIMES
