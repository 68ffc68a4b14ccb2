"""Signal handlers: they may record anywhere; they start, stop and flush only where they don't
interrupt one of these.
"""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers import source_calls
from helpers.recording_helpers import Capture
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function, step
from otel_recfn.batches.selection import Selected
from otel_recfn.errors import CallRefused
from otel_recfn.model.batch import Batch
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session

Interrupt = Callable[[Callable[[], object]], None]


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder)
    yield session
    session.at_exit()


@pytest.fixture
def in_next_drain(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupt]:
    """Has a signal handler call that in the middle of the next drain of this thread."""
    before = signal.getsignal(signal.SIGUSR1)
    drain = recorder.drain

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
    running = started(session)
    answers = list[object]()

    def call() -> None:
        try:
            answers.append(CALLS[called](session, running))
        except CallRefused as refused:
            answers.append(refused)

    in_next_drain(call)
    with record_function("before"):
        pass
    done = CALLS[interrupted](session, running)
    refusals = [
        str(answer) for answer in answers if isinstance(answer, CallRefused)
    ] or caplog.messages
    assert refusals == [
        f"{called}() was called in the middle of {interrupted}() in the same thread, as by a signal"
        " handler, and did nothing; call it when the handler has returned"
    ]
    assert interrupted != "flush" or done is True
    with record_function("after"):
        pass
    assert running.stop().names() == (["before"] if interrupted == "stop" else ["before", "after"])


@pytest.mark.parametrize("interrupted", CALLS)
def test_what_a_handler_records_there_is_recorded(
    recorder: Recorder, session: Session, in_next_drain: Interrupt, interrupted: str
) -> None:
    first = started(session)
    second = started(session)

    def record() -> None:
        with record_function("in the handler"):
            pass

    in_next_drain(record)
    CALLS[interrupted](session, first)
    assert second.stop().names() == ["in the handler"]


def test_a_handler_that_interrupts_the_program_profiles(recorder: Recorder) -> None:
    found: list[str] = []

    def handle(*_: object) -> None:
        with profile() as prof, record_function("in the handler"):
            pass
        found.extend(event.name for event in prof.events())

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with profile() as prof, record_function("outer"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == ["in the handler"]
    assert [event.name for event in prof.events()] == ["outer", "in the handler"]


def test_a_stop_that_a_handler_interrupts_as_it_begins_can_be_called_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The handler has to come as a stop begins, before it waits for anything: no step that is
    # public runs then.
    draining = session._draining  # noqa: SLF001
    running = started(session)
    close_ended = draining.close_ended

    def interrupted() -> None:
        if threading.current_thread() is not threading.main_thread():  # the one that drains
            return close_ended()
        monkeypatch.setattr(draining, "close_ended", close_ended)
        raise KeyboardInterrupt

    monkeypatch.setattr(draining, "close_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.stop(running.capture, PATIENCE_S)
    session.stop(running.capture, PATIENCE_S)
    assert running.capture.has_ended
    assert not source_calls.recording()


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
        assert source_calls.recording()
        instrumentor.uninstrument()
        assert not source_calls.recording()
    finally:
        instrumentor.uninstrument()


class Struck(Exception):
    """Raised by a signal handler, as a timeout's does."""


Strike = Callable[[int, Callable[[], object]], bool]


@pytest.fixture
def strike() -> Iterator[Strike]:
    """Calls a function, in which a handler raises the n-th time that Python looks for signals in
    code of ours: as a function of Python's begins, and as a call of one in C returns.

    Returns whether the call was over before.
    """
    handler = signal.getsignal(signal.SIGUSR1)
    profile_function = sys.getprofile()

    def handle(*_: object) -> None:
        raise Struck

    def call(number: int, function: Callable[[], object]) -> bool:
        left = number

        def look(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left
            # CPython 3.10 drops a generator without running its ``finally`` if a profile function
            # raises as it is entered; what a signal handler raises there runs it.
            is_generator = event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR
            is_looked_for = event in ("call", "c_return") and not is_generator
            left -= is_looked_for and is_in_ours(frame)
            if left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

        try:
            sys.setprofile(look)
            function()
        except Struck:
            return False
        finally:
            sys.setprofile(profile_function)
        assert left > 0, "what the handler raised is lost"
        return True

    signal.signal(signal.SIGUSR1, handle)
    yield call
    signal.signal(signal.SIGUSR1, handler)


def is_in_ours(frame: FrameType | None) -> bool:
    """Whether a frame is of ours, or of a context manager that ours enters or leaves."""
    if frame is not None and frame.f_code.co_name in ("__enter__", "__exit__"):
        frame = frame.f_back
    return frame is not None and f"{os.sep}otel_recfn{os.sep}" in frame.f_code.co_filename


def in_another_thread(call: Callable[[], object]) -> object:
    """What it returns there; None if it doesn't return."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answers[0] if answers else None


@pytest.mark.parametrize("called", ["flush", "counters", "force_flush"])
def test_wherever_a_handler_raises_no_lock_stays_held(
    recorder: Recorder, strike: Strike, called: str
) -> None:
    """The thread that drains, and whoever flushes, would wait for it for good."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider, roots_per_second=None)
    calls: dict[str, Callable[[], object]] = {
        "flush": partial(instrumentor.flush, PATIENCE_S),
        "counters": instrumentor.counters,
        "force_flush": partial(provider.force_flush, int(PATIENCE_S * 1000)),
    }
    try:
        for number in count(1):
            with record_function("range"):
                pass
            is_over = strike(number, calls[called])
            flushed = in_another_thread(partial(instrumentor.flush, PATIENCE_S))
            assert flushed is True, f"after strike {number}"
            if is_over:
                break
        assert number > 10
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


@pytest.mark.parametrize("nested", [1, 2, 3])
def test_what_begins_while_another_step_begins(capture: Capture, nested: int) -> None:
    """CPython before 3.12 collects garbage wherever it allocates, and calls back then; so do
    signal handlers.
    """

    def record(phase: str, info: dict[str, int]) -> None:
        for _ in range(nested):
            with step("in collection"), record_function("in collection"):
                pass

    threshold = gc.get_threshold()
    gc.callbacks.append(record)
    try:
        gc.set_threshold(1)
        for _ in range(STEPS):
            with record_function("outer"), step("step"), record_function("inner"):
                pass
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(record)
    rows = capture.finish()
    names = {row.event_id: row.name for row in rows} | {0: ""}
    parents = Counter((row.name, names[row.parent]) for row in rows if row.name != "in collection")
    assert parents == {("outer", ""): STEPS, ("step", "outer"): STEPS, ("inner", "step"): STEPS}


STEPS = 500
