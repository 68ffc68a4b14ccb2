"""Any number of captures at once, each with its own view of the one recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers import source_calls
from helpers.recording_helpers import LIMITS
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink

FUNCTION, USER = RecordScope.FUNCTION, RecordScope.USER_SCOPE


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def ranges(recorder: Recorder, *names: str, scope: RecordScope = USER) -> None:
    for name in names:
        source_calls.end(source_calls.begin(name, scope, EventSource.RECORD_FUNCTION))


def test_each_capture_sees_what_began_and_ended_while_it_ran(
    recorder: Recorder, session: Session
) -> None:
    first = Running(session, Selected())
    ranges(recorder, "before")
    second = Running(session, Selected())
    ranges(recorder, "both")
    first.stop()
    ranges(recorder, "after")
    second.stop()
    ranges(recorder, "nobody")
    assert first.names() == ["before", "both"]
    assert second.names() == ["both", "after"]
    assert not source_calls.recording()


def test_captures_have_scopes_of_their_own(recorder: Recorder, session: Session) -> None:
    functions = Running(session, Selected(scopes=1 << FUNCTION))
    users = Running(session, Selected(scopes=1 << USER))
    outer = source_calls.begin("outer", USER, EventSource.RECORD_FUNCTION)
    ranges(recorder, "inner", scope=FUNCTION)
    source_calls.end(outer)
    users.stop()
    ranges(recorder, "nobody's")
    functions.stop()
    assert functions.names() == ["inner"]
    assert functions.sink.events()[0].parent == 0
    assert users.names() == ["outer"]


def test_a_range_that_is_open_when_a_capture_ends_is_partial_there_and_whole_elsewhere(
    recorder: Recorder, session: Session
) -> None:
    lasting = Running(session, Selected())
    ending = Running(session, Selected())
    event_id = source_calls.begin("open", USER, EventSource.RECORD_FUNCTION)
    ending.stop()
    source_calls.end(event_id)
    lasting.stop()
    (partial,) = ending.sink.events()
    (whole,) = lasting.sink.events()
    assert (partial.event_id, whole.event_id) == (event_id, event_id)
    assert partial.flags & EventFlag.PARTIAL
    assert not whole.flags & EventFlag.PARTIAL
    assert partial.end_ns <= whole.end_ns


def test_a_range_that_was_open_when_a_capture_began_is_not_in_it(
    recorder: Recorder, session: Session
) -> None:
    first = Running(session, Selected())
    outer = source_calls.begin("outer", USER, EventSource.RECORD_FUNCTION)
    second = Running(session, Selected())
    ranges(recorder, "inner")
    source_calls.end(outer)
    assert first.stop().names() == ["outer", "inner"]
    (inner,) = second.stop().sink.events()
    assert (inner.name, inner.parent, inner.root) == ("inner", 0, inner.event_id)


def test_flush_shows_what_has_ended(recorder: Recorder, session: Session) -> None:
    running = Running(session, Selected())
    other = Running(session, Selected())
    ranges(recorder, "one")
    assert session.flush(running.capture, PATIENCE_S)
    assert running.names() == ["one"]
    other.stop()
    assert not session.flush(other.capture, PATIENCE_S)


def test_what_one_capture_has_no_memory_for_is_counted_and_the_others_have_it(
    recorder: Recorder, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Running(session, Selected())
    second = Running(session, Selected())
    view = Selection.view
    left = [MemoryError()]

    def failing_once(*arguments: Any, **keywords: Any) -> Batch:
        if left:
            raise left.pop()
        return view(*arguments, **keywords)

    # Memory runs out for one capture alone.
    monkeypatch.setattr(Selection, "view", failing_once)
    ranges(recorder, "one")
    session.flush(second.capture, PATIENCE_S)
    assert not left
    ranges(recorder, "two")
    assert session.flush(second.capture, PATIENCE_S)
    assert (first.stop().names(), second.stop().names()) == (["two"], ["one", "two"])
    counters = session.counters(first.capture)
    assert (counters["recorded"], counters["in_memory.dropped.error"]) == (2, 1)


@pytest.mark.one_python
def test_a_capture_that_lost_nothing_is_not_told_of_what_an_earlier_one_lost(
    recorder: Recorder, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    losing = Running(session, Selected())
    nested = [
        source_calls.begin("range", USER, EventSource.RECORD_FUNCTION)
        for _ in range(LIMITS["MAX_DEPTH"] + 1)
    ]
    for event_id in reversed(nested):
        source_calls.end(event_id)
    losing.stop()
    assert "dropped.buffer_full=" in caplog.text
    caplog.clear()
    Running(session, Selected()).stop()
    assert not caplog.records


def test_a_sinks_own_losses_are_told_when_its_capture_ends(
    recorder: Recorder, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    class Losing(InMemorySink):
        def counters(self) -> dict[str, int]:
            return {"dropped.forgotten": len(self.events()), "remembered": 7}

    capture = Capture(Selected(), [Losing()], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)
    ranges(recorder, "one", "two")
    session.stop(capture, PATIENCE_S)
    assert "otel-recfn lost in_memory.dropped.forgotten=2: see the log" in caplog.messages


class Slow(InMemorySink):
    """Its second write of rows takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = threading.Event()
        self.go_on = threading.Event()
        self.closed = threading.Event()
        self.closed_within_a_write = False
        self._writes = 0

    def write(self, batch: Batch) -> None:
        self._writes += len(batch) > 0
        if len(batch) and self._writes == 2:
            self.writing.set()
            assert self.go_on.wait(PATIENCE_S)
            self.closed_within_a_write = self.closed.is_set()
        super().write(batch)

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.closed.set()


def in_its_second_write(sink: Slow, recorder: Recorder, session: Session) -> Capture:
    """A capture whose sink has written "first", and writes "second" in the thread that drains."""
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)
    ranges(recorder, "first")
    assert session.flush(capture, PATIENCE_S)
    ranges(recorder, "second")
    assert sink.writing.wait(PATIENCE_S)
    return capture


@pytest.mark.parametrize("others", [0, 1])
def test_a_sink_that_is_still_written_to_is_closed_by_its_writer(
    recorder: Recorder, session: Session, others: int
) -> None:
    more_runs = [Running(session, Selected()) for _ in range(others)]
    sink = Slow()
    capture = in_its_second_write(sink, recorder, session)
    session.stop(capture, 0.05)
    assert not sink.closed.is_set()
    sink.go_on.set()
    assert sink.closed.wait(PATIENCE_S)
    assert not sink.closed_within_a_write
    assert [event.name for event in sink.events()] == ["first", "second"]
    assert all(running.stop().names() == ["first", "second"] for running in more_runs)


class Asking(InMemorySink):
    """Looks, while it is flushed, whether another thread can drain."""

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self.look = look
        self.found = threading.Event()

    def flush(self, timeout_s: float) -> bool:
        looking = threading.Thread(target=lambda: self.look() and self.found.set())
        looking.start()
        looking.join(PATIENCE_S)
        return True


def test_drains_go_on_while_a_sink_is_flushed(session: Session) -> None:
    other = Running(session, Selected())
    sink = Asking(lambda: session.flush(other.capture, PATIENCE_S))
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)
    assert session.flush(capture, PATIENCE_S)
    session.stop(capture, PATIENCE_S)
    assert sink.found.is_set()
