"""Sums of durations that grow with every batch, until a reader collects and takes them."""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.sdk_streams import SdkStreams
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series, SeriesTable
from otel_recfn.sinks.metrics.sums import DurationSums
from otel_recfn.support.forks import ForkSafeLock


class Taken(NamedTuple):
    """Sums, and where they go."""

    streams: SdkStreams
    sums: DurationSums
    series: list[Series | None]
    """By number, those of the sums and maybe more."""


class Durations:
    """Added to by one thread at a time, taken by any.

    Args:
        max_series: how many series there may be; what is beyond is summed up in one.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._lock = ForkSafeLock()
        self._table = SeriesTable(max_series)
        self._untaken: list[Taken] = []
        """What nobody has taken yet: of the readers that there are, and of those that there were before."""

    def add(self, batch: Batch, streams: SdkStreams) -> None:
        """Add a batch, for these streams."""
        with self._lock:
            numbers = self._table.numbers_of(batch)
            if not self._untaken or self._untaken[-1].streams is not streams:
                self._untaken.append(Taken(streams, DurationSums(streams.least_ns), self._table.series))
            sums = self._untaken[-1].sums.grown(len(self._table))
            self._untaken[-1] = self._untaken[-1]._replace(sums=sums)
            sums.add(batch, numbers)

    def take(self) -> list[Taken]:
        """All sums, which begin anew."""
        with self._lock:
            taken, self._untaken = self._untaken, []
            return taken
