"""Sinks and threads that start, stop, flush or record while a sink is written to: all are
served, and it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from helpers import source_calls
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def record(recorder: Recorder) -> None:
    source_calls.end(
        source_calls.begin("range", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
    )


REACTION_S = 0.3
"""Time for another thread to come to where it waits for us; where it needs longer, less is
shown.
"""


class Calling(InMemorySink):
    """Calls a function when it is first written to."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._calls = [call]

    def write(self, batch: Batch) -> None:
        super().write(batch)
        while self._calls:
            self._calls.pop()()


def all_end(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(PATIENCE_S)
    return not any(thread.is_alive() for thread in threads)


def started(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("stops", [False, True], ids=["starts", "stops"])
def test_a_sink_and_another_thread_switch_captures_at_once(
    recorder: Recorder, session: Session, stops: bool
) -> None:
    running = Running(session, Selected())
    others: list[threading.Thread] = []

    def switch_with_another_thread() -> None:
        others.append(
            started(running.stop if stops else lambda: Running(session, Selected()).stop())
        )
        others[0].join(REACTION_S)
        Running(session, Selected()).stop()

    called = Capture(
        Selected(), [Calling(switch_with_another_thread)], buffer_bytes=DEFAULT_BUFFER_BYTES
    )

    def program() -> None:
        session.start(called)
        record(recorder)
        session.flush(called, PATIENCE_S)

    assert all_end([started(program)])
    assert all_end(others)
    session.stop(called, PATIENCE_S)
    running.stop()
    assert not source_calls.recording()


def drain_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "otel-recfn drain"}


def test_captures_that_several_threads_start_and_stop_at_once_leave_nothing_behind(
    recorder: Recorder, session: Session
) -> None:
    before = drain_threads()
    missing = list[list[str]]()

    def come_and_go() -> None:
        for _ in range(30):
            running = Running(session, Selected())
            record(recorder)
            running.stop()
            if "range" not in running.names():
                missing.append(running.names())

    assert all_end([started(come_and_go) for _ in range(4)])
    assert missing == []
    assert not source_calls.recording()
    left = drain_threads() - before
    assert all_end(list(left)), "a drain thread goes on for nobody"


def begin(recorder: Recorder, name: str) -> int:
    return source_calls.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)


class Switches(InMemorySink):
    """Calls a function within its first write of rows, before it has the batch."""

    def __init__(self, switch: Callable[[], object]) -> None:
        super().__init__()
        self._switches = [switch]

    def write(self, batch: Batch) -> None:
        if self._switches and len(batch):
            self._switches.pop()()
        super().write(batch)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_one_that_ends_between_a_drain_and_its_delivery_has_what_was_drained(
    recorder: Recorder, session: Session, others: bool, own: bool
) -> None:
    """A sink ends the capture: its own, or another one that comes after it."""

    def switch() -> None:
        session.stop(switching if own else ending.capture, PATIENCE_S)
        more_runs.append(Running(session, Selected()))
        source_calls.end(begin(recorder, "later"))

    sink = Switches(switch)
    switching = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(switching)
    ending = Running(session, Selected())
    more_runs = [Running(session, Selected())] if others else []
    source_calls.end(begin(recorder, "drained"))
    session.flush(ending.capture, PATIENCE_S)
    session.stop(switching, PATIENCE_S)
    ending.stop()
    both = [[event.name for event in sink.events()], ending.names()]
    assert both == (
        [["drained"], ["drained", "later"]] if own else [["drained", "later"], ["drained"]]
    )
    assert more_runs.pop().stop().names() == ["later"]
    assert [other.stop().names() for other in more_runs] == [["drained", "later"]] * others
