"""While an exporter isn't known to work, it is the processor's thread that asks it, as often as it does without us.

More exports than that would find a backend that is down, and the one that is under way when the program ends is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from spans_harness import assert_balanced

from batches import BASE_NS, context, make_batch
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import delivery
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 200


class Asked(SpanExporter):
    """Counts how often it is asked, and what it was given."""

    def __init__(self) -> None:
        self.result, self.times, self.spans = SpanExportResult.SUCCESS, 0, 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.times += 1
        self.spans += len(spans)
        return self.result


class Sent:
    """A sink whose processor exports by itself after an hour."""

    def __init__(self) -> None:
        self.exporter = Asked()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.processor = BatchSpanProcessor(self.exporter, schedule_delay_millis=3_600_000)
        self.provider.add_span_processor(self.processor)
        self.sink = SpansSink(self.provider, None, volume=Volume(1000))
        self._units = 0

    def write(self, units: int) -> int:
        """Units that end one after the other; returns of how many ranges in all."""
        for _ in range(units):
            ids = range(self._units * ROWS + 1, self._units * ROWS + ROWS + 1)
            self._units += 1
            place = {"context": context(1, self._units), "start_ns": BASE_NS, "end_ns": BASE_NS + 1}
            self.sink.write(make_batch([{"event_id": make_event_id(1, number), **place} for number in ids]))
        self.sink.idle()
        return self._units * ROWS

    def flush_of_the_program(self) -> None:
        self.processor.force_flush()


@pytest.fixture
def sent() -> Iterator[Sent]:
    made = Sent()
    yield made
    made.provider.shutdown()


def test_before_the_first_export_none_is_made_by_us(sent: Sent) -> None:
    ranges = sent.write(20)
    assert sent.exporter.times == 0
    assert 0 < sent.sink.counters()["spans"] < 512  # a processor's thread begins with a whole batch
    sent.flush_of_the_program()
    assert sent.exporter.times == 1
    assert sent.sink.idle() in (True, False)  # it works: what waited goes
    sent.sink.close(PATIENCE_S)
    assert sent.exporter.spans == sent.sink.counters()["spans_exported"] == ranges
    assert_balanced(dict(sent.sink.counters()))


def test_while_exports_fail_none_is_made_by_us_but_where_one_is_asked_for(sent: Sent) -> None:
    sent.exporter.result = SpanExportResult.FAILURE
    sent.write(2)
    assert sent.sink.flush(PATIENCE_S)
    before = sent.exporter.times
    sent.write(20)
    assert sent.exporter.times == before >= 1
    sent.flush_of_the_program()
    assert sent.sink.idle()  # some wait still, and it is to be called again
    assert sent.exporter.times == before + 1
    sent.exporter.result = SpanExportResult.SUCCESS
    sent.sink.close(PATIENCE_S)
    counters = dict(sent.sink.counters())
    assert counters["spans_exported"] > 3000
    assert counters["spans_failed"] > 0
    assert_balanced(counters)


def test_a_flush_sends_what_was_held_back(sent: Sent) -> None:
    ranges = sent.write(20)
    assert sent.sink.flush(PATIENCE_S)
    assert sent.exporter.spans == ranges


def test_a_processor_that_doesnt_begin_is_made_to(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "OWN_PACE_SECONDS", 0.0)
    ranges = sent.write(20)
    assert sent.exporter.times > 1
    sent.sink.close(PATIENCE_S)
    assert sent.exporter.spans == ranges


def test_the_end_of_a_root_of_ours_waits_behind_its_ranges(sent: Sent) -> None:
    for number in range(1, 401):
        start_ns = BASE_NS + number * 10_000_000_000
        sent.sink.write(make_batch([{"event_id": make_event_id(1, number), "start_ns": start_ns, "end_ns": start_ns + 1}]))
    assert sent.sink.idle()
    assert sent.exporter.times == 0
    sent.sink.close(PATIENCE_S)
    counters = dict(sent.sink.counters())
    assert counters["roots"] > 300
    assert counters["spans_exported"] == sent.exporter.spans
    assert_balanced(counters)
