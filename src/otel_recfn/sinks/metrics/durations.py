"""Sums of durations that grow with every batch, until a reader collects and takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.adding import add_durations, find_series
from otel_recfn.sinks.metrics.buckets import Layout
from otel_recfn.sinks.metrics.sdk_streams import SdkStreams
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series, SeriesTable, Slots
from otel_recfn.sinks.metrics.sums import MIN_CAPACITY, DurationSums
from otel_recfn.support.fork_safe_lock import ForkSafeLock

_NO_BUCKETS = Layout((), ())


class Taken(NamedTuple):
    """Sums, and where they go."""

    streams: SdkStreams | None
    """None where the SDK's insides are others."""
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
        self._streams: SdkStreams | None = None
        self._sums: DurationSums | None = None
        self._numbers: Slots = np.empty(0, np.int32)
        self._earlier: list[Taken] = []
        """For the readers that there were before."""

    def add(self, batch: Batch, streams: SdkStreams | None) -> None:
        """Add a batch, for these streams."""
        with self._lock:
            numbers = self._numbers_of(batch)
            sums = self._sums
            if sums is None or streams is not self._streams:
                sums = self._begin(streams)
            self._sums = sums.grown(len(self._table))
            add_durations(batch, numbers, self._sums)

    def _numbers_of(self, batch: Batch) -> Slots:
        """The series of each row; new ones are met here."""
        if len(self._numbers) < len(batch):
            self._numbers = np.empty(2 * len(batch), np.int32)
        slots, numbers = self._table.slots(batch), self._numbers[: len(batch)]
        if unknown := find_series(batch, slots, numbers):
            self._table.learn(unknown)
            find_series(batch, slots, numbers)
        return numbers

    def _begin(self, streams: SdkStreams | None) -> DurationSums:
        sums = DurationSums(_NO_BUCKETS if streams is None else streams.layout, max(MIN_CAPACITY, len(self._table)))
        if self._sums is not None:
            self._earlier.append(Taken(self._streams, self._sums, self._table.series))
        self._streams, self._sums = streams, sums
        return sums

    def take(self) -> list[Taken]:
        """All sums, which begin anew."""
        with self._lock:
            taken, self._earlier = self._earlier, []
            if self._sums is not None:
                taken.append(Taken(self._streams, self._sums, self._table.series))
            self._sums = None
            return taken
