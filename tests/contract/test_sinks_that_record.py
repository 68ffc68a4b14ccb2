"""Sinks that record into their own capture, or flush it: they are served, and nothing goes on for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session import Session
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.in_memory import InMemorySink
from patience import PATIENCE_S
from running_capture import Running

pytestmark = pytest.mark.one_python


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def record(recorder: Recorder) -> None:
    recorder.end(recorder.begin("range", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION))


class Records(InMemorySink):
    """Has a capture of its own, with a range in it, in every write: its own capture sees that range, too."""

    def __init__(self, recorder: Recorder, session: Session) -> None:
        super().__init__()
        self._recorder, self._session = recorder, session
        self.rows = 0

    def write(self, batch: Batch) -> None:
        self.rows += len(batch)
        running = Running(self._session, Selected())
        record(self._recorder)
        running.stop()


class Flushes(InMemorySink):
    """Flushes its own capture when it is flushed."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.capture: Capture | None = None
        self.flushed: list[bool] = []

    def flush(self, timeout_s: float) -> bool:
        assert self.capture is not None
        self.flushed.append(self._session.flush(self.capture, timeout_s))
        return True


def test_a_sink_that_records_in_every_write_lets_the_program_go_on(recorder: Recorder, session: Session) -> None:
    sink = Records(recorder, session)
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)
    record(recorder)
    for _ in range(3):
        session.flush(capture, PATIENCE_S)
    session.stop(capture, PATIENCE_S)
    assert session.counters(capture)["recorded"] == sink.rows > 3
    assert not recorder.recording


def test_a_sink_that_flushes_its_own_capture_doesnt_wait_for_itself(recorder: Recorder, session: Session) -> None:
    sink = Flushes(session)
    sink.capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(sink.capture)
    record(recorder)
    assert session.flush(sink.capture, PATIENCE_S)
    assert sink.flushed == [False]
    session.stop(sink.capture, PATIENCE_S)
    assert [event.name for event in sink.events()] == ["range"]
