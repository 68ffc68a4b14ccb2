"""An exporter hangs while the program closes: the end takes no longer than it may; what didn't go is counted and told."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags
from spans_harness import REQUEST, Gated, Harness, assert_balanced

from batches import make_batch
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.sink import Process, SpansSink
from otel_recfn.support.forks import OwnThread
from timeouts import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5
"""Of a batch."""
REQUEST_SPAN = SpanContext(
    0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
)


class OfTheProject(Gated):
    """Which any thread may ask."""

    __module__ = "opentelemetry.exporter.test"


def batch(first: int) -> Batch:
    return make_batch(
        [
            {"event_id": make_event_id(1, first + number), "context": REQUEST}
            for number in range(ROWS)
        ]
    )


def came(sink: SpansSink, rows: Batch) -> None:
    sink.write(rows)
    sink._decide(rests=True)


@pytest.mark.parametrize("process_ends", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["queued", "exported at once"])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(3)], ids=["every range", "folded"])
def test_an_end_in_the_middle_of_an_export(
    volume: Volume, at_once: bool, process_ends: bool
) -> None:
    exporter, provider = Gated(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
    )
    sink = SpansSink(
        provider, volume=volume, process=Process(ends=lambda: process_ends, exit_timeout_s=0.1)
    )
    came(sink, batch(1))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.began.wait(PATIENCE_S)
    came(sink, batch(100))
    sink.close(0.1)
    assert not exporter.open.is_set()
    counters = dict(sink.counters())
    assert (
        ROWS <= counters["dropped.shutdown"] <= 2 * ROWS
    )  # what is left of the first unit is, too
    assert_balanced(counters)
    exporter.open.set()
    flushing.join(PATIENCE_S)
    provider.shutdown()
    assert sum(map(len, exporter.batches)) <= ROWS


def test_the_provider_waits_for_no_export_of_ours_where_the_process_ends() -> None:
    exporter, provider = OfTheProject(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=ROWS))
    sink = SpansSink(provider, process=Process(ends=lambda: True, exit_timeout_s=0.1))
    came(sink, batch(1))
    assert exporter.began.wait(PATIENCE_S)
    sink.close(0.1)
    provider.shutdown()
    assert not exporter.open.is_set()
    assert_balanced(dict(sink.counters()))
    exporter.open.set()


def test_spans_of_the_program_wait_for_no_batches_of_ours_where_the_process_ends() -> None:
    """They go at once, in their order, and alone."""
    exporter, provider = Gated(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=ROWS))
    target = ProviderResolver(provider).resolve()
    assert target is not None
    delivery, tracer = SpanDelivery(), provider.get_tracer("program")
    delivery.use(target)
    ours = [ReadableSpan("ours", REQUEST_SPAN, instrumentation_scope=target.scope)] * ROWS
    delivery.send(ours)
    assert exporter.began.wait(PATIENCE_S)
    requests = [f"request {number}" for number in range(2 * ROWS)]
    for name in requests:
        tracer.start_span(name).end()
        delivery.send(ours)
    delivery.remove(process_ends=True)
    exporter.open.set()
    provider.shutdown()
    first, second = ([span.name for span in spans] for spans in exporter.batches)
    assert (first, second) == (["ours"] * ROWS, requests)
    assert delivery.counters() == {
        "exported": ROWS,
        "failed": 0,
        "dropped.shutdown": 2 * ROWS * ROWS,
    }


def test_what_no_thread_could_be_had_for_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink, session = Harness().sink, process_session()
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)

    def start(self: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(OwnThread, "start", start)
    sink.write(batch(1))
    session.stop(capture, PATIENCE_S)
    [told] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert told.startswith(f"otel-recfn lost dropped.shutdown={ROWS}: ")
    assert any("no thread could be had" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("exporter", "told"),
    [
        (
            Gated(SpanExportResult.FAILURE, is_open=True),
            f"failed={ROWS}: exporters or the backend refused them",
        ),
        (Gated(), f"dropped.shutdown={ROWS}: the time for the end was over"),
    ],
    ids=["refuses", "hangs"],
)
def test_only_an_exporter_that_refuses_is_said_to_have_refused(
    exporter: Gated, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider, session = TracerProvider(shutdown_on_exit=False), process_session()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
    sink = SpansSink(
        provider, process=Process(ends=lambda: session.process_ends, exit_timeout_s=0.1)
    )
    session.start(
        Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES, exit_timeout_s=0.1)
    )
    sink.write(batch(1))
    if not exporter.open.is_set():
        assert exporter.began.wait(PATIENCE_S)
    session.at_exit()
    exporter.open.set()
    provider.shutdown()
    [lost] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert lost.startswith(f"otel-recfn lost {told}")
