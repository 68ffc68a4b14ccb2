"""Captures that begin and end in the middle of a drain, or as another one ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def begin(recorder: Recorder, name: str) -> int:
    return recorder.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)


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
        beside.append(Running(session, Selected()))
        recorder.end(begin(recorder, "later"))

    sink = Switches(switch)
    switching = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(switching)
    ending = Running(session, Selected())
    beside = [Running(session, Selected())] if others else []
    recorder.end(begin(recorder, "drained"))
    session.flush(ending.capture, PATIENCE_S)
    session.stop(switching, PATIENCE_S)
    ending.stop()
    both = [[event.name for event in sink.events()], ending.names()]
    assert both == ([["drained"], ["drained", "later"]] if own else [["drained", "later"], ["drained"]])
    assert beside.pop().stop().names() == ["later"]
    assert [other.stop().names() for other in beside] == [["drained", "later"]] * others
