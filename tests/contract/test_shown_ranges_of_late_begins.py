"""A range that is on its way while recordings end and begin is shown to the program only where it becomes a span."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session import Session
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted
from patience import PATIENCE_S
from running_capture import Running


class SpanThatIsReadSlowly(NonRecordingSpan):
    """Whoever asks for its context first waits until the test goes on."""

    def __init__(self) -> None:
        super().__init__(SpanContext(1, 2, False, TraceFlags(TraceFlags.SAMPLED)))
        self.is_read, self.may_go_on = threading.Event(), threading.Event()

    def get_span_context(self) -> SpanContext:
        self.is_read.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return super().get_span_context()


class InTheMiddle:
    """A source that does something when it is enabled for a capture whose ranges are shown, before anything is recorded."""

    name, announces, needs = "in the middle", None, None

    def __init__(self) -> None:
        self.do: Callable[[], object] = lambda: None

    def prepare(self) -> bool:
        return True

    def enable(self, wanted: Wanted) -> None:
        if wanted.shown is not None:
            self.do()

    def disable(self) -> None:
        pass


class Spans:
    """Every range becomes a span."""

    def has_target(self) -> bool:
        return True

    def lacks_provider(self) -> bool:
        return False

    def trace_of(self, root: int) -> None:
        return None

    def start_step(self, name: str, number: int, code: str) -> None:
        return None

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        pass

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        return False


@pytest.fixture
def between() -> InTheMiddle:
    return InTheMiddle()


@pytest.fixture
def session(recorder: Recorder, between: InTheMiddle) -> Iterator[Session]:
    session = Session(recorder, [ContextWatcher(recorder), between])
    yield session
    session.at_exit()


@pytest.fixture
def spans() -> Capture:
    return Capture(Selected(), [InMemorySink()], buffer_bytes=DEFAULT_BUFFER_BYTES, spans=Spans())


def test_one_that_began_before_the_recording_and_comes_after_its_start_was_decided(
    recorder: Recorder, session: Session, between: InTheMiddle, spans: Capture
) -> None:
    """It belongs to the recording that has ended: in the one that begins nobody gets it."""
    span = SpanThatIsReadSlowly()
    earlier = Running(session, Selected())
    begun, seen, done = threading.Event(), list[object](), threading.Event()

    def begin_late() -> None:
        token = otel_context.attach(trace.set_span_in_context(span))
        range_ = recorder.begin("late", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
        seen.append(trace.get_current_span())
        begun.set()
        assert done.wait(PATIENCE_S)
        recorder.end(range_)
        otel_context.detach(token)

    thread = threading.Thread(target=begin_late)
    thread.start()
    try:
        assert span.is_read.wait(PATIENCE_S)
        earlier.stop()
        between.do = lambda: (span.may_go_on.set(), begun.wait(PATIENCE_S))
        session.start(spans)
    finally:
        span.may_go_on.set()
        done.set()
        thread.join(PATIENCE_S)
    session.stop(spans, PATIENCE_S)
    assert seen[0] is span
