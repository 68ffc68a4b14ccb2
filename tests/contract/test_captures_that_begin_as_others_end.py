"""A capture that begins while the only other one ends: a signal handler's, or another thread's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.protocol import Recorder
from otel_recfn.session import Session
from patience import PATIENCE_S
from running_capture import Running


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


def begin(recorder: Recorder, name: str) -> int:
    return recorder.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)


def once_around(monkeypatch: pytest.MonkeyPatch, recorder: Recorder, method: str, call: Callable[[], None], when: str) -> None:
    """Call that once, before or after the next call of the recorder's method."""
    real, calls = getattr(recorder, method), [call]

    def called(*args: object, **keywords: object) -> object:
        if when == "before" and calls:
            calls.pop()()
        result = real(*args, **keywords)
        if when == "after" and calls:
            calls.pop()()
        return result

    monkeypatch.setattr(recorder, method, called)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_ending_one_gets_what_is_open_then(
    recorder: Recorder, session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its children were delivered already."""
    first, others = Running(session, Selected()), list[Running]()
    lost = recorder.counters().lost_in_drain
    outer = begin(recorder, "outer")
    recorder.end(begin(recorder, "inner"))
    session.flush(first.capture, PATIENCE_S)

    once_around(monkeypatch, recorder, "stop", lambda: others.append(Running(session, Selected())), when)
    first.stop()
    recorder.end(begin(recorder, "later"))
    recorder.end(outer)
    rows = {row.name: row for row in first.sink.events()}
    assert (rows["inner"].parent, rows["outer"].flags) == (outer, EventFlag.PARTIAL)
    assert others[0].stop().names() == ["later"]
    assert recorder.counters().lost_in_drain == lost
