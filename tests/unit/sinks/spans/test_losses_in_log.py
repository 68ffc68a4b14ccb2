"""What was not sent before the end is in the log's account of what was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from spans_harness import REQUEST, Harness

from batches import make_batch
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.spans.sink import Process, SpansSink
from otel_recfn.support.forks import OwnThread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5


def rows() -> Batch:
    return make_batch([{"event_id": make_event_id(1, number), "context": REQUEST} for number in range(1, ROWS + 1)])


def test_rows_that_the_end_cuts_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    sink, session = Harness().sink, process_session()
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)

    def start(self: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(OwnThread, "start", start)
    sink.write(rows())
    session.stop(capture, PATIENCE_S)
    [told] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert told.startswith(f"otel-recfn lost dropped.shutdown={ROWS}: ")
    assert any("no thread could be had" in message for message in caplog.messages)


class Refuses(SpanExporter):
    """Every span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


class Hangs(SpanExporter):
    """In every export, until it is let go."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        assert self.go_on.wait(PATIENCE_S)
        return SpanExportResult.SUCCESS


def losses_at_the_end(exporter: SpanExporter, caplog: pytest.LogCaptureFixture, handed_on: Callable[[], object]) -> list[str]:
    provider, session = TracerProvider(shutdown_on_exit=False), process_session()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
    sink = SpansSink(provider, process=Process(ends=lambda: session.process_ends, exit_timeout_s=0.1))
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES, exit_timeout_s=0.1)
    session.start(capture)
    sink.write(rows())
    handed_on()
    session.at_exit()
    return [message for message in caplog.messages if message.startswith("otel-recfn lost")]


def test_an_exporter_that_refuses_is_blamed(caplog: pytest.LogCaptureFixture) -> None:
    [told] = losses_at_the_end(Refuses(), caplog, lambda: None)
    assert told.startswith(f"otel-recfn lost failed={ROWS}: exporters or the backend refused them")


def test_an_exporter_that_is_not_done_at_the_end_is_not_said_to_have_refused(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Hangs()
    [told] = losses_at_the_end(exporter, caplog, lambda: exporter.began.wait(PATIENCE_S))
    exporter.go_on.set()
    assert told.startswith(f"otel-recfn lost dropped.shutdown={ROWS}: the time for the end was over")
