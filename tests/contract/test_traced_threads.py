"""The tracer of Python calls and threads: which are traced, from when on, and as whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from calling_program import Traced, short
from recording_helpers import check_laws

from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag
from otel_recfn.recording.recorder import Recorder
from otel_recfn.support.forks import OwnThread
from patience import PATIENCE_S


@pytest.fixture
def traced(recorder: Recorder, no_garbage_collection: None) -> Iterator[Traced]:
    made = Traced(recorder)
    yield made
    made.close()


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


class Blocked:
    """A thread that waits from before tracing begins until it is told to go on."""

    def __init__(self) -> None:
        self._at_rest, self._go_on, self.done = threading.Event(), threading.Lock(), threading.Event()
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
    assert [short(call) for call in calls] == ["_bootstrap", "_bootstrap_inner", "run", "runs", "waits"]
    assert [call.parent for call in calls] == [0, *[call.event_id for call in calls[:-1]]]
    assert [call.caller for call in calls] == [0, *[call.event_id for call in calls[:-1]]]


def marked() -> None:
    """Its begin is a moment."""


def test_a_thread_that_is_blocked_all_the_time_has_its_stack_from_the_start(traced: Traced, blocked: Blocked) -> None:
    rows = traced.run(marked)
    calls = calls_in(rows, "blocked")
    check_stack(calls)
    [moment] = [row for row in rows if short(row) == "marked"]
    assert all(call.start_ns <= moment.start_ns and call.end_ns >= moment.end_ns for call in calls)
    assert all(call.flags & EventFlag.PARTIAL for call in calls)
    check_laws(sorted(rows, key=lambda row: (row.end_ns, -row.event_id)))


def test_a_thread_that_is_blocked_at_the_start_goes_on_in_its_stack(traced: Traced, blocked: Blocked) -> None:
    rows = traced.run(lambda: (marked(), blocked.go_on()))
    calls = calls_in(rows, "blocked")
    check_stack(calls[:5])
    [moment] = [row for row in rows if short(row) == "marked"]
    assert all(call.start_ns <= moment.start_ns <= call.end_ns for call in calls[:5])
    waits, [later] = calls[4], [call for call in calls if short(call) == "leaf"]
    assert later.parent == calls[3].event_id
    assert waits.end_ns <= later.start_ns
    assert not waits.flags & EventFlag.PARTIAL
