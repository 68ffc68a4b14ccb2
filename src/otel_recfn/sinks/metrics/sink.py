"""Durations of ranges, summed up by scope and name, and counters, for the readers of a meter
provider.

    write(batch) ──► sums (columns; 20 ns a row at most)             in the thread that drains
    a reader collects ──► Instruments.callback ──► take() ──► SDK    in the reader's

Every range counts, whatever becomes of its span. No thread of ours calls the SDK, but to make the
instruments.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.instruments import Instruments, Report, get_instruments
from otel_recfn.sinks.metrics.sdk_streams import CollectedSums
from otel_recfn.sinks.metrics.sums import DurationSums, SeriesTable
from otel_recfn.sinks.protocol import Sink
from otel_recfn.support.forks import ForkSafeLock


class MetricsSink(Sink):
    """A sink that sums up durations, for the readers of a meter provider.

    Args:
        meter_provider: None for the global one, also when set later.
        torch_names: module calls have torch.profiler's names, and not those of spans.
    """

    name = "metrics"

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, torch_names: bool = False
    ) -> None:
        self._meter_provider = meter_provider
        self._torch_names = torch_names
        self._followed: MeterProvider | None = None
        self._instruments: Instruments | None = None
        self._lock = ForkSafeLock()
        """The lock for changing and taking sums."""
        self._series = SeriesTable(torch_names=torch_names)
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
            numbers = self._series.row_series(batch)
            if not self._untaken or self._untaken[-1].streams is not streams:
                self._untaken.append(
                    CollectedSums(streams, DurationSums(streams.min_ns), self._series.series)
                )
            sums = self._untaken[-1].sums
            sums.make_room(len(self._series.series))
            sums.add(batch, numbers)

    def _follow_provider(self) -> Instruments | None:
        provider = self._meter_provider or metrics.get_meter_provider()
        if provider is not self._followed:
            self._followed = provider
            if self._instruments is not None:
                self._instruments.detach(self.take)
            self._instruments = get_instruments(provider)
            if self._instruments is not None:
                self._instruments.attach(self.take, self._report)
        return self._instruments

    def take(self) -> list[CollectedSums]:
        """Remove and return the sums since the last time. From any thread."""
        with self._lock:
            taken, self._untaken = self._untaken, []
        return taken

    def flush(self, timeout_s: float) -> bool:
        """True, as readers collect when they do."""
        return True

    def close(self, timeout_s: float) -> None:
        """Leave the sums to the readers."""
        if self._instruments is not None and not self._closed:
            self._closed = True
            self._instruments.detach(self.take)

    def after_fork_in_child(self) -> MetricsSink:
        """An empty sink, because what the parent counted is the parent's."""
        fresh = MetricsSink(self._meter_provider, torch_names=self._torch_names)
        fresh.report_from(self._report)
        return fresh
