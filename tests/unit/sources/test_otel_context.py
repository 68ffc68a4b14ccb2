"""What is current in OpenTelemetry, and who is told when it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled, suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.types import ContextReading, trace_states
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted

RUNTIME: Any = context._RUNTIME_CONTEXT


class NoRecorder:
    """Stands for the recorder, and keeps the reader that it is given."""

    def __init__(self) -> None:
        self.reader: Callable[[], ContextReading | None] | None = None

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        self.reader = reader


@pytest.fixture
def recorder() -> NoRecorder:
    return NoRecorder()


@pytest.fixture
def watcher(recorder: NoRecorder) -> Iterator[ContextWatcher]:
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


def test_the_current_span_is_read(watcher: ContextWatcher, recorder: NoRecorder) -> None:
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


def test_a_trace_state_is_kept(watcher: ContextWatcher, recorder: NoRecorder) -> None:
    with use(0xABC, 0xDEF, state=TraceState([("vendor", "value"), ("other", "x")])):
        reading = watcher.read()
    assert reading is not None
    assert trace_states.split(reading.flags) == (ContextFlag.SAMPLED, "vendor=value,other=x")


def test_what_a_span_raises_is_for_the_recorder(watcher: ContextWatcher) -> None:
    class Broken(NonRecordingSpan):
        def get_span_context(self) -> SpanContext:
            raise RuntimeError("broken")

    with (
        trace.use_span(Broken(SpanContext(1, 2, False))),
        pytest.raises(RuntimeError, match="broken"),
    ):
        watcher.read()
