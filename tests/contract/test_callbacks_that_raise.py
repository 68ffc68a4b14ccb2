"""A sink, sampler, hook or log handler of the program's that raises, whatever it raises, ends
nothing but itself.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, StaticSampler

from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function, step


class WithoutText(BaseException):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


KINDS = [
    ValueError,
    KeyboardInterrupt,
    SystemExit,
    asyncio.CancelledError,
    pytest.fail.Exception,
    WithoutText,
]


class Raising:
    """A function of the program's that raises each time, and counts how often."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.calls = kind, 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        raise self.kind("the callback's own")


class BadSink(InMemorySink):
    """A sink of whose methods one raises."""

    name = "bad"

    def __init__(self, method: str, fail: Raising) -> None:
        super().__init__()
        setattr(self, method, fail)


class BadSampler(StaticSampler):
    def __init__(self, fail: Raising) -> None:
        super().__init__(Decision.RECORD_AND_SAMPLE)
        self.should_sample = fail  # type: ignore[method-assign]


class BadIds(IdGenerator):
    def __init__(self, fail: Raising) -> None:
        self._fail = fail

    def generate_span_id(self) -> int:
        return int(self._fail())

    def generate_trace_id(self) -> int:
        return int(self._fail())


class BadProcessor(SpanProcessor):
    def __init__(self, fail: Raising, *methods: str) -> None:
        for method in methods:
            setattr(self, method, fail)


class BadMeters(MeterProvider):
    def __init__(self, fail: Raising) -> None:
        self._fail = fail

    def get_meter(self, *_: Any, **__: Any) -> Any:
        return self._fail()


class BadTracers(TracerProvider):
    def __init__(self, fail: Raising) -> None:
        super().__init__(shutdown_on_exit=False)
        self.get_tracer = fail  # type: ignore[method-assign]


class BadHandler(logging.Handler):
    def __init__(self, fail: Raising) -> None:
        super().__init__()
        self.emit = fail  # type: ignore[method-assign]


class Used:
    """An instrumentor with a sink and an exporter, and what else a test gives it."""

    def __init__(self, instrumentor: OtelRecordFunctionInstrumentor, **more: Any) -> None:
        self.sink = InMemorySink()
        self.exporter = InMemorySpanExporter()
        provider = more.pop("tracer_provider", None) or TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.instrumentor = instrumentor
        sinks = [*more.pop("sinks", ()), self.sink]
        instrumentor.instrument(
            tracer_provider=provider, sinks=sinks, roots_per_second=None, detail="all", **more
        )

    def run(self, name: str) -> None:
        """A range, which the thread that drains has delivered when this returns."""
        with record_function(name):
            pass
        wait_until(lambda: name in self.names() or not drains())

    def names(self) -> list[str]:
        return [event.name for event in self.sink.events()]


def drains() -> bool:
    return any(thread.name == "otel-recfn drain" for thread in threading.enumerate())


def recording_goes_on(used: Used) -> None:
    """Three ranges arrive, the thread that drains goes on, and no call raises."""
    for name in ("first", "second"):
        used.run(name)
    used.instrumentor.flush(PATIENCE_S)
    used.run("third")
    assert drains()
    assert [name for name in used.names() if name in ("first", "second", "third")] == [
        "first",
        "second",
        "third",
    ]
    used.instrumentor.counters()
    used.instrumentor.uninstrument()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_sink(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    method: str,
    kind: type[BaseException],
) -> None:
    fail = Raising(kind)
    recording_goes_on(Used(instrumentor, sinks=[BadSink(method, fail)]))
    assert fail.calls == (1 if method != "close" else 2)  # a sink that fails is closed
    assert len([each for each in errors(caplog) if "'bad' failed and was removed" in each]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_sinks_counters(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    recording_goes_on(Used(instrumentor, sinks=[BadSink("counters", Raising(kind))]))
    logged = [each for each in errors(caplog) if "'bad' failed in counters()" in each]
    assert len(logged) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sink_says_that_it_wants(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    class Bad(InMemorySink):
        name = "bad"
        fail = Raising(kind)

        @property
        def wants_unsampled(self) -> bool:  # type: ignore[override]
            return bool(self.fail())

    recording_goes_on(Used(instrumentor, sinks=[Bad()]))
    assert len([each for each in errors(caplog) if "'bad' failed and was removed" in each]) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "part", ["sampler", "id generator", "tracers", "meters", "hook", "on_end", "force_flush"]
)
def test_a_part_of_a_provider_and_a_hook(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    part: str,
    kind: type[BaseException],
) -> None:
    fail = Raising(kind)
    settings: dict[str, Callable[[], dict[str, Any]]] = {
        "sampler": lambda: {
            "tracer_provider": TracerProvider(BadSampler(fail), shutdown_on_exit=False)
        },
        "id generator": lambda: {
            "tracer_provider": TracerProvider(id_generator=BadIds(fail), shutdown_on_exit=False)
        },
        "tracers": lambda: {"tracer_provider": BadTracers(fail)},
        "meters": lambda: {"meter_provider": BadMeters(fail)},
        "hook": lambda: {"span_hook": fail},
        "on_end": dict,
        "force_flush": dict,
    }
    given = settings[part]()
    if part in ("on_end", "force_flush"):
        given["tracer_provider"] = TracerProvider(shutdown_on_exit=False)
        given["tracer_provider"].add_span_processor(BadProcessor(fail, part))
    recording_goes_on(Used(instrumentor, **given))
    assert fail.calls
    assert part != "hook" or fail.calls == 1
    messages = {
        "sampler": "the sampler or the id generator raised",
        "id generator": "the sampler or the id generator raised",
        "tracers": "the tracer provider raised",
        "meters": "the meter provider raised",
        "hook": "span_hook raised on the span",
        "on_end": "a span processor raised in on_end",
        "force_flush": "a span processor raised in force_flush",
    }
    assert [part for each in errors(caplog) if messages[part] in each][:1] == [part]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["on_start", "on_end"])
def test_a_processor_as_a_step_begins_and_ends(
    instrumentor: OtelRecordFunctionInstrumentor, method: str, kind: type[BaseException]
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BadProcessor(Raising(kind), method))
    used = Used(instrumentor, tracer_provider=provider)
    with step("train"):
        pass
    recording_goes_on(used)


@pytest.fixture
def bad_handler() -> Iterator[Callable[[type[BaseException]], Raising]]:
    """Adds a handler to our log."""
    log = logging.getLogger("otel_recfn")
    added = list[logging.Handler]()

    def add(kind: type[BaseException]) -> Raising:
        fail = Raising(kind)
        added.append(BadHandler(fail))
        log.addHandler(added[-1])
        return fail

    yield add
    for each in added:
        log.removeHandler(each)


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_handler(
    instrumentor: OtelRecordFunctionInstrumentor,
    bad_handler: Callable[[type[BaseException]], Raising],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    monkeypatch.setenv("OTEL_RECFN_NO_SUCH_SETTING", "1")  # which is logged in the program's thread
    logged = bad_handler(kind)
    # And this by the thread that drains.
    used = Used(instrumentor, sinks=[BadSink("write", Raising(ValueError))])
    assert logged.calls >= 1
    recording_goes_on(used)
    assert logged.calls >= 2


def test_a_record_says_where_it_was_logged(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RECFN_NO_SUCH_SETTING", "1")
    Used(instrumentor)
    assert [
        record.filename for record in caplog.records if "NO_SUCH_SETTING" in record.getMessage()
    ] == ["instrumentor.py"]


# --- what isn't the callback's own


@pytest.fixture
def ctrl_c() -> Iterator[Callable[..., None]]:
    """Has the user press Ctrl-C, as the program that runs has it: a test runner in the
    background may ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    yield press
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_a_sink_is_flushed_goes_on_to_the_program(
    instrumentor: OtelRecordFunctionInstrumentor,
    ctrl_c: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = BadSink("flush", Raising(ValueError))
    pressed = [ctrl_c]
    sink.flush = lambda timeout_s: bool(pressed and pressed.pop()())  # type: ignore[method-assign]
    used = Used(instrumentor, sinks=[sink])
    with pytest.raises(KeyboardInterrupt):
        instrumentor.flush(PATIENCE_S)
    used.run("after")
    assert [event.name for event in sink.events()] == ["after"]
    assert errors(caplog) == []


def test_ctrl_c_while_a_step_begins_goes_on_to_the_program(
    instrumentor: OtelRecordFunctionInstrumentor, ctrl_c: Callable[..., None]
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    pressed = [ctrl_c]
    processor = BadProcessor(Raising(ValueError))
    processor.on_start = lambda span, parent_context=None: pressed and pressed.pop()()  # type: ignore[method-assign]
    provider.add_span_processor(processor)
    used = Used(instrumentor, tracer_provider=provider)
    with pytest.raises(KeyboardInterrupt), step("train"):
        pass
    recording_goes_on(used)
