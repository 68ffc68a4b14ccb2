"""Captures that begin and end in the middle of a drain, or as another one ends: a signal handler's, or another thread's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import get_ident
from typing import Any

import pytest

from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.recorder import Recorder
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
def test_the_last_one_that_ends_gets_what_is_open_then(
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


@pytest.mark.parametrize("others", [False, True])
def test_one_that_ends_between_a_drain_and_its_delivery_has_what_was_drained(
    recorder: Recorder, session: Session, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    first = Running(session, Selected())
    beside = [Running(session, Selected())] if others else []
    recorder.end(begin(recorder, "drained"))

    def switch() -> None:
        first.stop()
        beside.append(Running(session, Selected()))
        recorder.end(begin(recorder, "later"))

    once_around(monkeypatch, recorder, "drain", switch, "after")
    session.flush(first.capture, PATIENCE_S)
    assert first.names() == ["drained"]
    assert beside.pop().stop().names() == ["later"]
    assert [other.stop().names() for other in beside] == [["drained", "later"]] * others


@pytest.mark.parametrize("others", [False, True])
def test_one_that_ends_gets_all_where_memory_is_short(
    recorder: Recorder, session: Session, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """A drain has a part only then."""
    real, rest, own = recorder.drain, list[Any](), get_ident()

    def drain(**asked: Any) -> Any:
        if get_ident() != own:  # the thread that drains now and then
            return real(**asked)
        keep = asked.pop("keep", None)
        if not rest:
            whole = real(**asked)
            rest.append(replace(whole.take(slice(1, None)), closed=max(0, whole.closed - 1)))
            part = replace(whole.take(slice(1)), closed=min(1, whole.closed), complete=False)
        else:
            part = rest.pop()
        if keep is not None:
            keep.into.append(keep.entry_of(part))
        return part

    ending = Running(session, Selected())
    beside = [Running(session, Selected())] if others else []
    outer = begin(recorder, "outer")
    recorder.end(begin(recorder, "first"))
    recorder.end(begin(recorder, "second"))
    monkeypatch.setattr(recorder, "drain", drain)
    assert sorted(ending.stop().names()) == ["first", "outer", "second"]
    monkeypatch.undo()
    recorder.end(outer)
    assert [sorted(other.stop().names()) for other in beside] == [["first", "outer", "second"]] * others
