"""What is current in OpenTelemetry, and who is told when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled, suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from otel_recfn import _native
from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.types import ContextReading, trace_states
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted

RUNTIME: Any = context._RUNTIME_CONTEXT


class CountingRecorder:
    """Counts, per thread, how often it was told of a change."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.reader: Callable[[], ContextReading | None] | None = None

    def span_attached(self, span: object, token: object) -> None:
        self.told.append(threading.get_ident())

    def context_attached(self, token: object) -> None:
        self.told.append(threading.get_ident())

    def span_detached(self, token: object) -> None:
        self.told.append(threading.get_ident())

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        self.reader = reader


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> CountingRecorder:
    made = CountingRecorder()
    for name in ("span_attached", "context_attached", "span_detached"):
        monkeypatch.setattr(_native, name, getattr(made, name))
    return made


@pytest.fixture
def watcher(recorder: CountingRecorder) -> Iterator[ContextWatcher]:
    watcher = ContextWatcher(recorder)  # type: ignore[arg-type]
    watcher.enable(Wanted())
    yield watcher
    watcher.disable()
    assert "attach" not in vars(RUNTIME)
    assert "detach" not in vars(RUNTIME)


def use(trace_id: int, span_id: int, flags: int = 1, state: TraceState | None = None) -> Any:
    span_context = SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags), trace_state=state
    )
    return trace.use_span(NonRecordingSpan(span_context))


def test_the_current_span_is_read(watcher: ContextWatcher, recorder: CountingRecorder) -> None:
    assert recorder.reader == watcher.read
    with TracerProvider().get_tracer("t").start_as_current_span("s") as span:
        own = span.get_span_context()
        assert watcher.read() == ContextReading(
            own.trace_id, own.span_id, int(ContextFlag.SAMPLED), span=span
        )
        with use(7, 8, flags=0) as other:
            assert watcher.read() == ContextReading(7, 8, 0, span=other)
    assert watcher.read() is None


def test_suppression_as_the_instrumentation_package_means_it(watcher: ContextWatcher) -> None:
    with suppress_instrumentation():
        assert not is_instrumentation_enabled()
        assert watcher.read() == ContextReading(
            0, 0, int(ContextFlag.SUPPRESSED), span=trace.INVALID_SPAN
        )
        with use(7, 8) as span:
            assert watcher.read() == ContextReading(
                7, 8, int(ContextFlag.SUPPRESSED | ContextFlag.SAMPLED), span=span
            )


@pytest.mark.parametrize("key", [context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation"])
def test_either_key_suppresses(watcher: ContextWatcher, key: str) -> None:
    token = context.attach(context.set_value(key, True))
    try:
        assert not is_instrumentation_enabled()
        reading = watcher.read()
        assert reading is not None
        assert reading.flags == ContextFlag.SUPPRESSED
    finally:
        context.detach(token)


def test_a_trace_state_is_kept(watcher: ContextWatcher, recorder: CountingRecorder) -> None:
    with use(0xABC, 0xDEF, state=TraceState([("vendor", "value"), ("other", "x")])):
        reading = watcher.read()
    assert reading is not None
    assert trace_states.split(reading.flags) == (ContextFlag.SAMPLED, "vendor=value,other=x")


def test_a_span_that_raises_is_no_span(
    watcher: ContextWatcher, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(NonRecordingSpan):
        def get_span_context(self) -> SpanContext:
            raise RuntimeError("broken")

    with trace.use_span(Broken(SpanContext(1, 2, False))):
        assert watcher.read() is None
        assert watcher.read() is None
    assert caplog.text.count("cannot be read") == 1


def test_told_after_each_attach_and_detach_in_the_thread_that_did_it(
    watcher: ContextWatcher, recorder: CountingRecorder
) -> None:
    def in_a_span() -> None:
        with use(1, 2):
            pass

    in_a_span()
    assert recorder.told == [threading.get_ident()] * 2
    thread = threading.Thread(target=in_a_span)
    thread.start()
    thread.join()
    assert recorder.told[2:] == [thread.ident] * 2


def test_results_and_errors_are_the_originals(
    watcher: ContextWatcher, recorder: CountingRecorder
) -> None:
    token = RUNTIME.attach(context.get_current())
    RUNTIME.detach(token)
    with pytest.raises(RuntimeError):
        RUNTIME.detach(token)  # used already
    assert len(recorder.told) == 2


def test_somebody_who_wrapped_after_us_stays(
    recorder: CountingRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = ContextWatcher(recorder)  # type: ignore[arg-type]
    watcher.enable(Wanted())
    ours, passed = RUNTIME.attach, []

    def theirs(argument: Any) -> Any:
        passed.append(argument)
        return ours(argument)

    monkeypatch.setattr(RUNTIME, "attach", theirs)
    watcher.disable()
    assert RUNTIME.attach is theirs
    with use(1, 2):
        pass
    assert len(passed) == 1
    assert recorder.told == []
    watcher.enable(Wanted())  # one more of ours calls theirs, which calls the first
    recorder.told.clear()
    with use(1, 2):
        pass
    assert len(passed) == 2
    assert len(recorder.told) == 2
    watcher.disable()
    assert RUNTIME.attach is theirs
    monkeypatch.delattr(RUNTIME, "attach")  # they leave and take us with them
    watcher.enable(Wanted())
    recorder.told.clear()
    with use(1, 2):
        pass
    assert len(recorder.told) == 2
    watcher.disable()
    monkeypatch.undo()
    vars(RUNTIME).pop("attach", None)


class _Slotted:
    """A runtime context that takes no attributes."""

    __slots__ = ()

    def attach(self, value: object) -> object:
        return RUNTIME.attach(value)

    def detach(self, token: object) -> None:
        RUNTIME.detach(token)

    def get_current(self) -> object:
        return RUNTIME.get_current()


def test_where_the_object_cannot_be_changed_the_functions_are_wrapped(
    recorder: CountingRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_RUNTIME_CONTEXT", _Slotted())
    before = context.attach, context.detach
    watcher = ContextWatcher(recorder)  # type: ignore[arg-type]
    watcher.enable(Wanted())
    assert context.attach is not before[0]
    context.detach(context.attach(context=context.get_current()))
    assert len(recorder.told) == 2
    watcher.disable()
    assert (context.attach, context.detach) == before


def test_this_sdk_still_has_the_object_that_is_watched() -> None:
    """When this fails, the SDK has changed: ContextWatcher falls back to the public functions."""
    assert type(context._RUNTIME_CONTEXT).__name__ == "ContextVarsRuntimeContext"
    assert vars(context._RUNTIME_CONTEXT) is not None
