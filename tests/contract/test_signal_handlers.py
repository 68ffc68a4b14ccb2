"""Signal handlers: they may record anywhere; they start, stop and flush only where they don't interrupt one of these."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor, _native, profile
from otel_recfn.batches.selection import Selected
from otel_recfn.errors import CallRefused
from otel_recfn.model.batch import Batch
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session
from running_capture import Running
from timeouts import PATIENCE_S

Interrupt = Callable[[Callable[[], object]], None]


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


@pytest.fixture
def in_next_drain(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupt]:
    """Has a signal handler call that in the middle of the next drain of this thread."""
    before, drain = signal.getsignal(signal.SIGUSR1), recorder.drain

    def interrupt(call: Callable[[], object]) -> None:
        left = [signal.SIGUSR1]

        def interrupted(**asked: Any) -> Batch:
            batch = drain(**asked)
            if left and threading.current_thread() is threading.main_thread():
                signal.raise_signal(left.pop())
            return batch

        signal.signal(signal.SIGUSR1, lambda *_: call())
        monkeypatch.setattr(recorder, "drain", interrupted)

    yield interrupt
    signal.signal(signal.SIGUSR1, before)


def started(session: Session) -> Running:
    return Running(session, Selected())


CALLS: dict[str, Callable[[Session, Running], object]] = {
    "start": lambda session, _: started(session),
    "stop": lambda session, running: session.stop(running.capture, PATIENCE_S),
    "flush": lambda session, running: session.flush(running.capture, PATIENCE_S),
}


@pytest.mark.parametrize("interrupted", CALLS)
@pytest.mark.parametrize("called", CALLS)
def test_a_handler_is_refused_what_it_calls_in_the_middle_of_another_call(
    recorder: Recorder,
    session: Session,
    in_next_drain: Interrupt,
    interrupted: str,
    called: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    running, answers = started(session), list[object]()

    def call() -> None:
        try:
            answers.append(CALLS[called](session, running))
        except CallRefused as refused:
            answers.append(refused)

    in_next_drain(call)
    with _native.record_function("before"):
        pass
    done = CALLS[interrupted](session, running)
    told = [str(answer) for answer in answers if isinstance(answer, CallRefused)] or caplog.messages
    assert told == [
        f"{called}() was called in the middle of {interrupted}() in the same thread, as by a signal handler, and did "
        f"nothing; call it when the handler has returned"
    ]
    assert interrupted != "flush" or done is True
    with _native.record_function("after"):
        pass
    assert running.stop().names() == (["before"] if interrupted == "stop" else ["before", "after"])


@pytest.mark.parametrize("interrupted", CALLS)
def test_what_a_handler_records_there_is_recorded(
    recorder: Recorder, session: Session, in_next_drain: Interrupt, interrupted: str
) -> None:
    first, second = started(session), started(session)

    def record() -> None:
        with _native.record_function("in the handler"):
            pass

    in_next_drain(record)
    CALLS[interrupted](session, first)
    assert second.stop().names() == ["in the handler"]


def test_a_handler_that_interrupts_the_program_profiles(recorder: Recorder) -> None:
    found: list[str] = []

    def handle(*_: object) -> None:
        with profile() as prof, _native.record_function("in the handler"):
            pass
        found.extend(event.name for event in prof.events())

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with profile() as prof, _native.record_function("outer"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == ["in the handler"]
    assert [event.name for event in prof.events()] == ["outer", "in the handler"]


def test_a_stop_that_a_handler_interrupts_as_it_begins_can_be_called_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, close_ended = started(session), session._draining.close_ended

    def interrupted() -> None:
        if threading.current_thread() is not threading.main_thread():  # the one that drains
            return close_ended()
        monkeypatch.setattr(session._draining, "close_ended", close_ended)
        raise KeyboardInterrupt

    monkeypatch.setattr(session._draining, "close_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.stop(running.capture, PATIENCE_S)
    session.stop(running.capture, PATIENCE_S)
    assert running.capture.has_ended
    assert not _native.recording()


def test_an_instrumentor_that_a_handler_could_not_switch_is_switched_later(
    recorder: Recorder, in_next_drain: Interrupt, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument()
    try:
        in_next_drain(instrumentor.uninstrument)
        assert instrumentor.flush(PATIENCE_S)
        assert (
            "otel-recfn is still instrumenting: stop() was called in the middle of flush()"
            in caplog.text
        )
        assert _native.recording()
        instrumentor.uninstrument()
        assert not _native.recording()
    finally:
        instrumentor.uninstrument()
