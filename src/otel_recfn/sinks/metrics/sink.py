"""Durations of ranges, summed up by scope and name, and counters, for the readers of a meter provider.

    write(batch) ──► sums (columns; 20 ns a row at most)             in the thread that drains
    a reader collects ──► Instruments.callback ──► take() ──► SDK    in the reader's

Every range counts, whatever becomes of its span. No thread of ours calls the SDK, but to make the instruments.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanContext, TraceFlags

from otel_recfn.batches.stage import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import NUM_SCOPES, EventFlag
from otel_recfn.sinks.metrics.instruments import Instruments, Report, instruments_of
from otel_recfn.sinks.metrics.sdk_streams import CollectedSums, Exemplar
from otel_recfn.sinks.metrics.sums import MAX_SERIES, DurationSums, Series, SeriesTable
from otel_recfn.sinks.protocol import Sink
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.span_ids import span_id
from otel_recfn.support.texts import text_of_utf8

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_PARTIAL = np.uint32(EventFlag.PARTIAL)


class SentSpans:
    """Spans that were sent, as exemplars of the series of their ranges: for each series the longest since the last time.

    One thread notes, any takes: what was found is replaced whole, so that neither waits for the other.

    Attributes:
        wanted: whether anybody takes them.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._longest: dict[Series, Exemplar] = {}

    def note(self, plan: SpanPlan) -> None:
        """Note the spans of a plan, which have been handed to the processors."""
        if not self.wanted:
            return
        batch, rows, longest = plan.batch, plan.row, self._longest
        durations = np.where(batch.flags[rows] & _PARTIAL, -1, np.maximum(batch.end_ns[rows] - batch.start_ns[rows], 0))
        order = np.argsort(durations)
        keys = batch.name[rows].astype(np.int64) * NUM_SCOPES + batch.scope[rows]
        for key, place in dict(zip(keys[order].tolist(), order.tolist(), strict=True)).items():  # the longest of each key
            name, scope = divmod(key, NUM_SCOPES)
            series, ns = Series(scope, text_of_utf8(batch.names[name])), int(durations[place])
            kept = longest.get(series)
            if ns > kept.duration_ns if kept is not None else ns >= 0 and len(longest) < MAX_SERIES:
                row, above = int(rows[place]), plan.spans_above[int(plan.above[place])]
                span = SpanContext(above.trace_id, span_id(int(batch.event_id[row])), False, _SAMPLED)
                longest[series] = Exemplar(ns, max(0, int(batch.end_ns[row])), span)

    def take(self) -> dict[Series, Exemplar]:
        """Remove and return the spans since the last time."""
        taken, self._longest = self._longest, {}
        return taken


class MetricsSink(Sink):
    """A sink that sums up durations, for the readers of the meter provider: None for the global one, also when set later."""

    name = "metrics"

    def __init__(self, meter_provider: MeterProvider | None = None, sent: SentSpans | None = None) -> None:
        self._meter_provider = meter_provider
        self._sent = sent or SentSpans()
        self._followed: MeterProvider | None = None
        self._instruments: Instruments | None = None
        self._lock = ForkSafeLock()
        """The lock for changing and taking sums."""
        self._series = SeriesTable()
        self._untaken: list[CollectedSums] = []
        """Sums that nobody has taken yet, for the readers that there are, and for those before."""
        self._report: Callable[[], Report] = dict
        self._closed = False

    @property
    def wants_unsampled(self) -> bool:  # type: ignore[override]
        """Whether a meter provider has readers for durations, which get every range."""
        instruments = self._follow_provider()
        return instruments is not None and instruments.streams() is not None

    def report_from(self, report: Callable[[], Report]) -> None:
        """Set the function that reads the counters; before the first batch."""
        self._report = report
        self._follow_provider()

    def write(self, batch: Batch) -> None:
        """Add a batch to the sums, if there are readers."""
        instruments = self._follow_provider()
        streams = instruments.streams() if instruments is not None else None
        if streams is None:
            return
        with self._lock:
            numbers = self._series.numbers_of(batch)
            if not self._untaken or self._untaken[-1].streams is not streams:
                self._untaken.append(CollectedSums(streams, DurationSums(streams.least_ns), self._series.series))
            sums = self._untaken[-1].sums
            sums.make_room(len(self._series.series))
            sums.add(batch, numbers)

    def _follow_provider(self) -> Instruments | None:
        provider = self._meter_provider or metrics.get_meter_provider()
        if provider is not self._followed:
            self._followed = provider
            if self._instruments is not None:
                self._instruments.detach(self.take)
            self._instruments = instruments_of(provider)
            if self._instruments is not None:
                self._instruments.attach(self.take, self._report)
            self._sent.wanted = self._instruments is not None
        return self._instruments

    def take(self) -> tuple[list[CollectedSums], dict[Series, Exemplar]]:
        """Remove and return the sums, and spans that were sent, since the last time. From any thread."""
        with self._lock:
            taken, self._untaken = self._untaken, []
        return taken, self._sent.take()

    def flush(self, timeout_s: float) -> bool:
        """True, as readers collect when they do."""
        return True

    def close(self, timeout_s: float) -> None:
        """Leave the sums to the readers."""
        self._sent.wanted = False
        if self._instruments is not None and not self._closed:
            self._closed = True
            self._instruments.detach(self.take)

    def after_fork_in_child(self) -> MetricsSink:
        """An empty sink, because what the parent counted is the parent's."""
        fresh = MetricsSink(self._meter_provider, self._sent)
        self._sent.take()
        fresh.report_from(self._report)
        return fresh
