"""Durations of ranges, summed up by scope and name, and counters, for the readers of a meter provider.

    write(batch) ──► Durations (columns; 20 ns a row at most)        in the thread that drains
    a reader collects ──► Instruments.callback ──► take() ──► SDK    in the reader's

Every range counts, whatever becomes of its span. No thread of ours calls the SDK, but to make the instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.durations import Durations, Taken
from otel_recfn.sinks.metrics.instruments import Instruments, instruments_of
from otel_recfn.sinks.metrics.pipeline import Report
from otel_recfn.sinks.metrics.sdk_streams import Exemplar
from otel_recfn.sinks.metrics.sent_spans import SentSpans
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series
from otel_recfn.sinks.protocol import Sink


class MetricsSink(Sink):
    """Sums up what is written; the readers of the meter provider take it.

    Args:
        meter_provider: None for the global one, also when that is set later.
        sent: the spans that were sent, as exemplars.
        max_series: how many series there may be; ranges of more are summed up in one.
    """

    name = "metrics"

    def __init__(
        self, meter_provider: MeterProvider | None = None, sent: SentSpans | None = None, max_series: int = MAX_SERIES
    ) -> None:
        self._meter_provider, self._max_series = meter_provider, max_series
        self._sent = sent or SentSpans()
        self._followed: MeterProvider | None = None
        self._instruments: Instruments | None = None
        self._durations = Durations(max_series)
        self._report: Callable[[], Report] = _nothing
        self._from_zero = False
        self._closed = False

    @property
    def wants_unsampled(self) -> bool:  # type: ignore[override]
        """Whether a meter provider has readers for durations: they are told of every range."""
        instruments = self._follow_provider()
        return instruments is not None and instruments.streams() is not None

    def report_from(self, report: Callable[[], Report]) -> None:
        """Tell the counters that this reads; before the first batch."""
        self._report = report
        self._follow_provider()

    def write(self, batch: Batch) -> None:
        """Add a batch to the sums, if there are readers."""
        instruments = self._follow_provider()
        streams = instruments.streams() if instruments is not None else None
        if streams is not None:
            self._durations.add(batch, streams)

    def _follow_provider(self) -> Instruments | None:
        provider = self._meter_provider or metrics.get_meter_provider()
        if provider is not self._followed:
            self._followed = provider
            if self._instruments is not None:
                self._instruments.detach(self.take)
            self._instruments = instruments_of(provider)
            if self._instruments is not None:
                self._instruments.attach(self.take, self._report, from_zero=self._from_zero)
            self._sent.wanted = self._instruments is not None
        return self._instruments

    def take(self) -> tuple[list[Taken], dict[Series, Exemplar]]:
        """The sums, and spans that were sent, since the last time. From any thread."""
        return self._durations.take(), self._sent.take()

    def flush(self, timeout_s: float) -> bool:
        """Nothing to wait for: readers collect when they do."""
        return True

    def close(self, timeout_s: float) -> None:
        """Leave the sums to the readers."""
        self._sent.wanted = False
        if self._instruments is not None and not self._closed:
            self._closed = True
            self._instruments.detach(self.take)

    def counters(self) -> Mapping[str, int]:
        """It loses nothing."""
        return {}

    def after_fork_in_child(self) -> Sink | None:
        """An empty one: what the parent counted is the parent's."""
        fresh = MetricsSink(self._meter_provider, self._sent, self._max_series)
        self._sent.take()
        fresh._from_zero = True
        fresh.report_from(self._report)
        return fresh


def _nothing() -> Report:
    return {}
