"""Signal handlers: they may record anywhere; they start, stop and flush only where they don't interrupt one of these."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from forked import in_child
from otel_recfn import OtelRecordFunctionInstrumentor, profile
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import CallRefused
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session import Session
from patience import PATIENCE_S
from running_capture import Running

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
    with recorder.record_function("before"):
        pass
    done = CALLS[interrupted](session, running)
    told = [str(answer) for answer in answers if isinstance(answer, CallRefused)] or caplog.messages
    assert told == [
        f"{called}() was called in the middle of {interrupted}() in the same thread, as by a signal handler, and did "
        f"nothing; call it when the handler has returned"
    ]
    assert interrupted != "flush" or done is True
    with recorder.record_function("after"):
        pass
    assert running.stop().names() == (["before"] if interrupted == "stop" else ["before", "after"])


@pytest.mark.parametrize("interrupted", CALLS)
def test_what_a_handler_records_there_is_recorded(
    recorder: Recorder, session: Session, in_next_drain: Interrupt, interrupted: str
) -> None:
    first, second = started(session), started(session)

    def record() -> None:
        with recorder.record_function("in the handler"):
            pass

    in_next_drain(record)
    CALLS[interrupted](session, first)
    assert second.stop().names() == ["in the handler"]


def test_a_handler_that_interrupts_the_program_profiles(recorder: Recorder) -> None:
    found: list[str] = []

    def handle(*_: object) -> None:
        with profile() as prof, recorder.record_function("in the handler"):
            pass
        found.extend(event.name for event in prof.events())

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with profile() as prof, recorder.record_function("outer"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == ["in the handler"]
    assert [event.name for event in prof.events()] == ["outer", "in the handler"]


def test_a_profile_that_a_handler_could_not_stop_is_stopped_later(recorder: Recorder, in_next_drain: Interrupt) -> None:
    prof, refused = profile(), list[CallRefused]()
    prof.start()

    def stop() -> None:
        with pytest.raises(CallRefused) as raised:
            prof.stop()
        refused.append(raised.value)

    in_next_drain(stop)
    prof.events()
    with recorder.record_function("range"):
        pass
    prof.stop()
    assert len(refused) == 1
    assert [event.name for event in prof.events()] == ["range"]


def test_an_instrumentor_that_a_handler_could_not_switch_is_switched_later(
    recorder: Recorder, in_next_drain: Interrupt, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument()
    try:
        in_next_drain(instrumentor.uninstrument)
        assert instrumentor.flush(PATIENCE_S)
        assert "otel-recfn is still instrumenting: stop() was called in the middle of flush()" in caplog.text
        assert recorder.recording
        instrumentor.uninstrument()
        assert not recorder.recording
    finally:
        instrumentor.uninstrument()


def test_an_instrumentor_that_a_handler_could_not_start_starts_later(recorder: Recorder, in_next_drain: Interrupt) -> None:
    instrumentor, refused = OtelRecordFunctionInstrumentor(), list[CallRefused]()

    def instrument() -> None:
        with pytest.raises(CallRefused) as raised:
            instrumentor.instrument()
        refused.append(raised.value)

    in_next_drain(instrument)
    with profile():
        pass
    assert len(refused) == 1
    assert not recorder.recording
    instrumentor.instrument()
    assert recorder.recording
    instrumentor.uninstrument()


class Interrupts(SpanProcessor):
    """Has a signal handler run in the main thread while the sender's thread flushes, for which ``flush()`` waits there."""

    def __init__(self) -> None:
        self.handled, self.waited = threading.Event(), False

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        end = time.monotonic() + PATIENCE_S
        while not self.handled.is_set() and time.monotonic() < end:  # one that comes right before a lock waits with it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            self.waited = self.handled.wait(0.05)
        return True


def profiled() -> None:
    with profile():
        pass


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda instrumentor: instrumentor.uninstrument(), "stop"),
        (lambda instrumentor: instrumentor.flush(PATIENCE_S), "flush"),
        (lambda _: profiled(), "start"),
    ],
    ids=["uninstrument", "flush", "profile"],
)
def test_a_handler_is_refused_what_it_calls_while_a_flush_waits_for_an_exporter(
    recorder: Recorder, call: Callable[[OtelRecordFunctionInstrumentor], object], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor, processor, provider = OtelRecordFunctionInstrumentor(), Interrupts(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    told: list[str] = []

    def handle(*_: object) -> None:
        if processor.handled.is_set():
            return
        try:
            told.append(f"returned {call(instrumentor)}")
        except CallRefused as refused:
            told.append(str(refused))
        processor.handled.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        instrumentor.instrument(tracer_provider=provider)
        with provider.get_tracer("program").start_as_current_span("request"), recorder.record_function("range"):
            pass
        assert instrumentor.flush(PATIENCE_S)
        assert processor.waited
        assert recorder.recording
    finally:
        instrumentor.uninstrument()
        signal.signal(signal.SIGUSR1, before)
    assert told == {"stop": ["returned None"], "flush": ["returned False"]}.get(name, told)
    assert f"{name}() was called in the middle of flush() in the same thread" in "".join([*told, *caplog.messages])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_that_a_handler_forks_makes_calls_of_its_own(
    recorder: Recorder, session: Session, in_next_drain: Interrupt
) -> None:
    running = started(session)

    def check() -> None:
        with recorder.record_function("child's"):
            pass
        assert session.flush(running.capture, PATIENCE_S)
        assert running.capture.rows == 1

    in_next_drain(lambda: in_child(check))
    assert session.flush(running.capture, PATIENCE_S)
    running.stop()


class Flushes(logging.Handler):
    """Flushes with each record, as one that wants nothing to be lost before a crash."""

    def __init__(self, flush: Callable[[], bool]) -> None:
        super().__init__()
        self._flush, self.records = flush, list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._flush()


def test_a_logging_handler_that_flushes_is_told_once(recorder: Recorder, session: Session, in_next_drain: Interrupt) -> None:
    running = started(session)
    handler = Flushes(lambda: session.flush(running.capture, PATIENCE_S))
    log = logging.getLogger("otel_recfn")
    in_next_drain(lambda: log.warning("as of a wall clock that jumped"))
    log.addHandler(handler)
    try:
        assert session.flush(running.capture, PATIENCE_S)
    finally:
        log.removeHandler(handler)
    assert len(handler.records) == 2
    running.stop()
