"""Captures that begin and end in the middle of a drain, or as another one ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session import Session
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.support.own_thread import OwnThread
from patience import PATIENCE_S
from running_capture import Running


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def begin(recorder: Recorder, name: str) -> int:
    return recorder.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)


def test_the_last_one_that_ends_gets_what_is_open_as_another_thread_starts_one(
    recorder: Recorder, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children were delivered already."""
    first, others = Running(session, Selected()), list[Running]()
    lost = recorder.counters().lost_in_drain
    outer = begin(recorder, "outer")
    recorder.end(begin(recorder, "inner"))
    session.flush(first.capture, PATIENCE_S)
    wait = OwnThread.wait_for_end

    def start_beside(thread: OwnThread, timeout_s: float) -> None:
        monkeypatch.undo()
        starting = threading.Thread(target=lambda: others.append(Running(session, Selected())))
        starting.start()
        starting.join()
        wait(thread, timeout_s)

    monkeypatch.setattr(OwnThread, "wait_for_end", start_beside)
    first.stop()
    recorder.end(begin(recorder, "later"))
    recorder.end(outer)
    rows = {row.name: row for row in first.sink.events()}
    assert (rows["inner"].parent, rows["outer"].flags) == (outer, EventFlag.PARTIAL)
    assert others[0].stop().names() == ["later"]
    assert recorder.counters().lost_in_drain == lost


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
