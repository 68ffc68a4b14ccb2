"""What the program may call from where we call it: nothing hangs, nothing raises, and the sinks
get what was recorded.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.model.batch import Batch
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, clear_callbacks


class Program:
    """Instrumented, and calling back once from a place of ours."""

    def __init__(self, what: str, where: str) -> None:
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self._call = getattr(self, what)
        self._where = where
        self.called = threading.Event()
        self.over = threading.Event()
        self.outcome: Any = None
        self.took_s = -1.0
        self.before_call: Callable[[], object] = lambda: None
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=CallingSampler(self), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider.add_span_processor(CallingProcessor(self))
        processor = BatchSpanProcessor if where == "batch exporter" else SimpleSpanProcessor
        self.provider.add_span_processor(processor(CallingExporter(self)))
        self.sinks: list[Any] = [CallingSink(self, "first"), CallingSink(self, "second")]
        if where == "logging handler":
            self.sinks.append(FailingSink())

    def instrument(self) -> None:
        sinks = self.sinks if not self.called.is_set() else []
        self.instrumentor.instrument(
            tracer_provider=self.provider, roots_per_second=None, span_budget=None, sinks=sinks
        )

    def reach(self, where: str) -> None:
        """Call, if this is the place, the first time."""
        if where != self._where or self.called.is_set():
            return
        self.called.set()
        self.before_call()
        begun = time.monotonic()
        try:
            self.outcome = self._call()
        except BaseException as error:
            self.outcome = error
        self.took_s = time.monotonic() - begun
        self.over.set()

    def run(self) -> None:
        for _ in range(20):
            with record_function("outer"), record_function("inner"):
                pass

    def uninstrument(self) -> None:
        self.instrumentor.uninstrument()

    def reinstrument(self) -> None:
        self.instrumentor.uninstrument()
        self.instrument()

    def flush(self) -> bool:
        return self.instrumentor.flush(PATIENCE_S)

    def counters(self) -> Mapping[str, int]:
        return self.instrumentor.counters()

    def profiled(self) -> bool:
        with profile() as prof, record_function("profiled"):
            pass
        return "profiled" in [event.name for event in prof.events()]


class CallingProcessor(SpanProcessor):
    def __init__(self, program: Program) -> None:
        self._program = program

    def on_end(self, span: ReadableSpan) -> None:
        self._program.reach("span processor")


class CallingExporter(SpanExporter):
    def __init__(self, program: Program) -> None:
        self._program = program

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._program.reach("exporter")
        self._program.reach("batch exporter")
        return SpanExportResult.SUCCESS


class CallingSampler(Sampler):
    def __init__(self, program: Program) -> None:
        self._program = program

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        self._program.reach("sampler")
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "calls back"


class CallingSink(InMemorySink):
    def __init__(self, program: Program, name: str) -> None:
        super().__init__()
        self._program, self.name, self.closed = program, name, False
        self.order: list[int] = []

    def write(self, batch: Batch) -> None:
        assert not self.closed
        super().write(batch)
        self.order += batch.event_id.tolist()
        self._program.run()  # so that there is something to drain
        self._program.reach("sink's write")

    def flush(self, timeout_s: float) -> bool:
        self._program.reach("sink's flush")
        return super().flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        self.closed = True
        self._program.reach("sink's close")


class FailingSink(InMemorySink):
    name = "failing"

    def write(self, batch: Batch) -> None:
        raise ValueError("this sink fails")


class CallingHandler(logging.Handler):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        self._program.reach("logging handler")


class Finalized:
    def __init__(self, program: Program) -> None:
        self._program, self.itself = program, self

    def __del__(self) -> None:
        self._program.reach("finalizer")


AT_ONCE_S = PATIENCE_S / 3
"""A call that waited for itself would take longer: as long as tests wait."""


PLACES = [
    "span processor",
    "exporter",
    "batch exporter",
    "sampler",
    "sink's write",
    "sink's flush",
    "sink's close",
]


PLACES += ["logging handler", "callback", "signal handler", "finalizer"]


CALLS = {
    "uninstrument": {None},
    "reinstrument": {None},
    "flush": {True, False},
    "profiled": {True},
    "counters": None,
}


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
        add_global_callback(RecordFunctionCallback(lambda _: program.reach("callback")))
    if where == "signal handler":
        signal.signal(signal.SIGUSR1, lambda *_: program.reach("signal handler"))
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
    assert_no_own_thread()


def assert_no_own_thread() -> None:
    wait_until(
        lambda: not any(thread.name.startswith("otel-recfn") for thread in threading.enumerate())
    )


@pytest.mark.usefixtures("cleanly")
def test_what_was_queued_when_a_span_processor_uninstrumented_is_counted() -> None:
    program = Program("uninstrument", "span processor")
    program.instrument()
    for _ in range(50):
        program.run()
    until_called(program, "span processor")
    assert_no_own_thread()
    counters = program.counters()
    outcomes = ("exported", "unsampled", "dropped.shutdown")
    assert counters["recorded"] + counters["added"] == sum(counters[name] for name in outcomes)
