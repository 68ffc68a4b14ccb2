"""An exporter hangs while the program closes: the end takes no longer than it may; what didn't
go is counted and told.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from spans_harness import (
    REQUEST,
    Gated,
    Harness,
    assert_balanced,
    spans_sink,
    write_unit,
)

from helpers.batches import make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Event
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.spans import delivery
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import Process, SpansSink
from otel_recfn.support.forks import OwnThread

pytestmark = pytest.mark.one_python

ROWS = 5
"""Of a batch."""
LATER = 1e18
"""When an exit is over, for which there is time enough."""


def rows(first: int) -> list[dict[str, Any]]:
    return [
        {"event_id": make_event_id(1, first + number), "context": REQUEST} for number in range(ROWS)
    ]


@pytest.mark.parametrize("process_ends", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["queued", "exported at once"])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(3)], ids=["every range", "folded"])
def test_an_end_in_the_middle_of_an_export(
    volume: Volume, at_once: bool, process_ends: bool
) -> None:
    exporter = Gated()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
    )
    process = Process(deliver_by=lambda: LATER if process_ends else math.inf, exit_timeout_s=0.1)
    sink = spans_sink(provider, volume=volume, process=process)
    write_unit(sink, rows(1))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.began.wait(PATIENCE_S)
    write_unit(sink, rows(100))
    sink.close(0.1)
    assert not exporter.open.is_set()
    counters = dict(sink.counters())
    # What is left of the first unit is, too.
    assert ROWS <= counters["dropped.shutdown"] <= 2 * ROWS
    assert_balanced(counters)
    exporter.open.set()
    flushing.join(PATIENCE_S)
    provider.shutdown()
    assert sum(map(len, exporter.batches)) <= ROWS


@pytest.fixture
def hanging() -> Iterator[tuple[Gated, TracerProvider]]:
    """A provider and its exporter, which hangs until the test has ended."""
    exporter = Gated()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=ROWS))
    yield exporter, provider
    exporter.open.set()
    provider.shutdown()


def started_at(provider: TracerProvider) -> SpansSink:
    """A sink whose process ends."""
    sink = spans_sink(provider, process=Process(deliver_by=lambda: LATER, exit_timeout_s=0.1))
    sink.start()
    return sink


def ends_while_it_exports(sink: SpansSink, exporter: Gated) -> None:
    exporter.began.clear()
    write_unit(sink, rows(1000))
    assert exporter.began.wait(PATIENCE_S)
    sink.close(0.1)


def test_the_provider_waits_for_no_export_of_ours_where_the_process_ends(
    hanging: tuple[Gated, TracerProvider],
) -> None:
    exporter, provider = hanging
    ends_while_it_exports(sink := started_at(provider), exporter)
    provider.shutdown()
    assert not exporter.open.is_set()
    assert sink.counters()["dropped.shutdown"] == ROWS
    assert_balanced(dict(sink.counters()))


@pytest.mark.parametrize("is_slow", [True, False])
def test_nor_for_what_processors_have_between_two_flushes_if_the_last_was_slow(
    monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    monkeypatch.setattr(delivery, "SLOW_FLUSH_S", 0.0 if is_slow else math.inf)
    asked = threading.Event()
    may_go_on = threading.Event()

    def hook(row: Event, attributes: dict[str, Any]) -> None:
        if row.event_id >= make_event_id(1, 1000):
            asked.set()
            assert may_go_on.wait(PATIENCE_S)

    exporter = Gated(is_open=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    process = Process(deliver_by=lambda: LATER, exit_timeout_s=0.0)
    sink = spans_sink(provider, hook=hook, process=process)
    sink.start()
    write_unit(sink, rows(1))
    assert sink.flush(PATIENCE_S)
    exporter.open.clear()
    write_unit(sink, rows(100))
    write_unit(sink, rows(1000))
    assert asked.wait(PATIENCE_S)  # by then it has handed over the unit before
    sink.close(PATIENCE_S)
    ending = threading.Thread(target=provider.shutdown)
    ending.start()
    if not is_slow:
        exporter.open.set()
    ending.join(PATIENCE_S)
    assert exporter.open.is_set() is not is_slow
    assert sink.counters()["dropped.shutdown"] == (2 * ROWS if is_slow else ROWS)
    assert_balanced(dict(sink.counters()))
    may_go_on.set()
    exporter.open.set()


def test_nor_where_spans_of_the_program_were_exported_before(
    hanging: tuple[Gated, TracerProvider],
) -> None:
    exporter, provider = hanging
    exporter.open.set()
    sink = started_at(provider)
    provider.get_tracer("program").start_span("request").end()
    write_unit(sink, rows(1))
    assert sink.flush(PATIENCE_S)
    exporter.open.clear()
    ends_while_it_exports(sink, exporter)
    provider.shutdown()
    assert not exporter.open.is_set()
    assert sink.counters()["dropped.shutdown"] == ROWS
    assert_balanced(dict(sink.counters()))


@pytest.mark.parametrize(
    ("has_own", "constants", "waits"),
    [
        (False, {"QUICK_FLUSH_S": 0.0, "SLOW_FLUSH_S": 0.0}, False),
        (False, {"QUICK_FLUSH_S": 0.0, "SLOW_FLUSH_S": math.inf}, True),
        (False, {"QUICK_FLUSH_S": math.inf, "SLOW_FLUSH_S": 0.0}, True),
        (True, {"QUICK_FLUSH_S": 0.0, "SLOW_FLUSH_S": 0.0}, True),
    ],
    ids=["two slow flushes", "the first was not slow", "the second is quick", "the program's span"],
)
def test_the_end_of_the_process_waits_for_no_flush_after_a_slow_one(
    monkeypatch: pytest.MonkeyPatch, constants: dict[str, float], *, has_own: bool, waits: bool
) -> None:
    for name, seconds in constants.items():
        monkeypatch.setattr(delivery, name, seconds)
    exporter = Gated(is_open=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    process = Process(deliver_by=lambda: LATER, exit_timeout_s=PATIENCE_S)
    sink = spans_sink(provider, process=process)
    sink.start()
    write_unit(sink, rows(1))
    assert sink.flush(PATIENCE_S)
    exporter.began.clear()
    exporter.open.clear()
    if has_own:
        provider.get_tracer("program").start_span("request").end()
    write_unit(sink, rows(100))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.began.wait(PATIENCE_S)

    def wait_for_end(thread: OwnThread, timeout_s: float) -> None:
        exporter.open.set()  # the server is up again for whoever waits
        thread.join(timeout_s)

    monkeypatch.setattr(OwnThread, "wait_for_end", wait_for_end)
    sink.close(PATIENCE_S)
    assert exporter.open.is_set() is waits
    assert sink.counters()["dropped.shutdown"] == (0 if waits else ROWS)
    assert_balanced(dict(sink.counters()))
    exporter.open.set()
    flushing.join(PATIENCE_S)
    provider.shutdown()


@pytest.mark.parametrize("ended", ["before", "after"])
def test_the_provider_waits_for_spans_of_the_program(
    hanging: tuple[Gated, TracerProvider], ended: str
) -> None:
    """Whether they ended before we heard of any, or after."""
    exporter, provider = hanging
    sink = started_at(provider) if ended == "after" else None
    provider.get_tracer("program").start_span("request").end()
    sink = sink or started_at(provider)
    ends_while_it_exports(sink, exporter)
    ending = threading.Thread(target=provider.shutdown)
    ending.start()
    exporter.open.set()
    ending.join(PATIENCE_S)
    assert "request" in [span.name for span in exporter.spans]
    assert_balanced(dict(sink.counters()))


class Ending(BatchSpanProcessor):
    """A processor that knows which threads shut it down."""

    def __init__(self, exporter: Gated) -> None:
        super().__init__(exporter)
        self.ended_by: list[threading.Thread] = []

    def shutdown(self) -> None:
        self.ended_by.append(threading.current_thread())
        super().shutdown()


def test_the_provider_waits_for_a_span_of_the_programs_that_ends_in_an_exit_handler() -> None:
    exporter = Gated()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor := Ending(exporter))
    sink = started_at(provider)
    main = provider.get_tracer("program").start_span("main")
    write_unit(sink, rows(1))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.began.wait(PATIENCE_S)
    sink.close(0.1)
    main.end()
    ending = threading.Thread(target=provider.shutdown)
    ending.start()
    exporter.open.set()
    ending.join(PATIENCE_S)
    flushing.join(PATIENCE_S)
    assert processor.ended_by == [ending]
    assert "main" in [span.name for span in exporter.spans]


class CountingFlushes(SpanProcessor):
    """A processor that knows how often it was flushed."""

    flushes = 0

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.flushes += 1
        return True


def test_flushes_that_nobody_waits_for_any_more_are_not_done(
    hanging: tuple[Gated, TracerProvider],
) -> None:
    exporter, provider = hanging
    provider.add_span_processor(counting := CountingFlushes())
    sink = spans_sink(provider)
    write_unit(sink, rows(1))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.began.wait(PATIENCE_S)
    assert not any(sink.flush(0.0) for _ in range(100))
    exporter.open.set()
    flushing.join(PATIENCE_S)
    assert sink.flush(PATIENCE_S)
    assert counting.flushes == 2
    sink.close(PATIENCE_S)


def test_what_no_thread_could_be_had_for_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Harness().sink
    session = process_session()
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)

    def start(self: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(OwnThread, "start", start)
    sink.write(make_batch(rows(1)))
    session.stop(capture, PATIENCE_S)
    [told] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert told.startswith(f"otel-recfn lost dropped.shutdown={ROWS}: ")
    assert any("no thread could be had" in message for message in caplog.messages)


def test_what_the_end_left_behind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Gated()
    provider = TracerProvider(shutdown_on_exit=False)
    session = process_session()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
    sink = spans_sink(
        provider, process=Process(deliver_by=lambda: session.deliver_by, exit_timeout_s=0.1)
    )
    session.start(
        Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES, exit_timeout_s=0.1)
    )
    sink.write(make_batch(rows(1)))
    assert exporter.began.wait(PATIENCE_S)
    session.at_exit()
    exporter.open.set()
    provider.shutdown()
    [lost] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert lost.startswith(
        f"otel-recfn lost dropped.shutdown={ROWS}: they were not sent within exit_timeout_s"
    )
