"""What the program may call from where we call it: nothing hangs, nothing raises, and the sinks get what was recorded."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from calling_back import CallingHandler, Finalized, Program
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, clear_callbacks
from patience import PATIENCE_S, wait_until

AT_ONCE_S = PATIENCE_S / 3
"""A call that waited for itself would take longer: as long as tests wait."""


PLACES = ["span processor", "exporter", "batch exporter", "sampler", "sink's write", "sink's flush", "sink's close"]
PLACES += ["logging handler", "callback", "signal handler", "finalizer"]
CALLS = {"uninstrument": {None}, "reinstrument": {None}, "flush": {True, False}, "profiled": {True}, "counters": None}


@pytest.fixture
def cleanly() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    clear_callbacks()
    OtelRecordFunctionInstrumentor().uninstrument()
    signal.signal(signal.SIGUSR1, handler)


def until_called(program: Program, where: str) -> None:
    """Run ranges until the place is come by."""
    end = time.monotonic() + PATIENCE_S
    while not program.over.is_set() and time.monotonic() < end:
        program.run()
        if where == "signal handler":
            signal.raise_signal(signal.SIGUSR1)
        elif where == "finalizer":
            Finalized(program)
            gc.collect()
        elif where == "sink's flush":
            program.flush()
        elif where == "sink's close":
            program.instrumentor.uninstrument()
        program.over.wait(0.01)
    assert program.over.is_set(), "nobody came by"


@pytest.mark.usefixtures("cleanly")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", CALLS)
def test_called_from_a_place_of_ours(what: str, where: str, request: pytest.FixtureRequest) -> None:
    program = Program(what, where)
    handler = CallingHandler(program)
    logging.getLogger("otel_recfn").addHandler(handler)
    request.addfinalizer(lambda: logging.getLogger("otel_recfn").removeHandler(handler))
    if where == "callback":
        add_global_callback(RecordFunctionCallback(lambda _: program.at("callback")))
    if where == "signal handler":
        signal.signal(signal.SIGUSR1, lambda *_: program.at("signal handler"))
    program.instrument()
    until_called(program, where)
    assert program.took_s < AT_ONCE_S
    if CALLS[what] is None:
        assert program.outcome["recorded"] >= 0
    else:
        assert program.outcome in CALLS[what], repr(program.outcome)
    begun = time.monotonic()
    program.uninstrument()
    assert time.monotonic() - begun < AT_ONCE_S
    assert_no_thread_of_ours()


def assert_no_thread_of_ours() -> None:
    wait_until(lambda: not any(thread.name.startswith("otel-recfn") for thread in threading.enumerate()))


@pytest.mark.usefixtures("cleanly")
def test_what_was_queued_when_a_span_processor_uninstrumented_is_exported() -> None:
    program = Program("uninstrument", "span processor")
    program.instrument()
    for _ in range(50):
        program.run()
    until_called(program, "span processor")
    assert_no_thread_of_ours()
    counters = program.counters()
    assert counters["recorded"] + counters["added"] == counters["exported"] + counters["unsampled"]


@pytest.mark.usefixtures("cleanly")
def test_a_flush_that_waits_for_an_exporter_does_not_hold_up_the_drain() -> None:
    program = Program("counters", "nowhere")
    hold, held = threading.Event(), threading.Event()

    class Held(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            held.set()
            hold.wait(PATIENCE_S)

    program.provider.add_span_processor(Held())
    program.instrument()
    program.run()
    flushing = threading.Thread(target=program.instrumentor.flush, args=(20,))
    flushing.start()
    try:
        assert held.wait(PATIENCE_S)
        before = len(program.sinks[1].events())
        program.run()
        wait_until(lambda: len(program.sinks[1].events()) > before)
    finally:
        hold.set()
        flushing.join()
