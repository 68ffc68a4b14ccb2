"""Where something was lost: in which trace and in which thread, and how much in each of these places, bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import counts_of, is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.tables import Track

MOST_PLACES = 256
"""Of so many places it is known how much was lost there, of those where something was lost last."""


class Place(NamedTuple):
    """Of what was lost; 0 for what isn't known."""

    trace_id: int = 0
    thread: int = 0
    """``thread.id``."""
    track: int = 0
    """The recorder's number of the thread."""


LostAt: TypeAlias = Mapping[Place, int]
NOWHERE: LostAt = {}
Column: TypeAlias = NDArray[Any]


class Places(NamedTuple):
    """Of each of some rows or spans, in their order."""

    numbers: NDArray[np.int64]
    """Equal ones are in the same place."""
    place: Callable[[int], Place]
    """Which one has the number."""

    def part(self, which: slice) -> Places:
        """Of some of them."""
        return Places(self.numbers[which], self.place)

    def counts(self, told: int = 0) -> LostAt:
        """How many are in each place; in the first one's also the losses that this one tells."""
        counted = dict[Place, int]()
        for number, count in zip(*counts_of(self.numbers), strict=True):
            place = self.place(number)
            counted[place] = counted.get(place, 0) + count
        if told and len(self.numbers):
            counted[self.place(int(self.numbers[0]))] += told
        return counted


def places_in(trace_ids: Sequence[int], trace: Column, tracks: Sequence[Track], track: Column) -> Places:
    """Of rows or spans whose columns index these tables."""
    numbers = trace.astype(np.int64) * np.int64(len(tracks)) + track.astype(np.int64)
    return Places(numbers, place_by_number(trace_ids, tracks))


def place_by_number(trace_ids: Sequence[int], tracks: Sequence[Track]) -> Callable[[int], Place]:
    """The place whose number is that of its trace, times the number of tracks, plus that of its track."""
    return partial(_place, trace_ids, [each.number for each in tracks])


def _place(trace_ids: Sequence[int], tracks: Sequence[int], number: int) -> Place:
    return Place(trace_ids[number // len(tracks)], track=tracks[number % len(tracks)])


def missing(batch: Batch, kept: Batch) -> LostAt:
    """How many rows of a batch are not among those that were kept of it, by place."""
    gone = ~is_in(batch.event_id, kept.event_id)
    trace_ids = [context.trace_id for context in batch.contexts]
    return places_in(trace_ids, batch.context[gone], batch.tracks, batch.thread[gone]).counts()


def with_more(lost_at: LostAt, more: LostAt, most: int = MOST_PLACES) -> LostAt:
    """With these too; of too many places those are forgotten where nothing was lost for longest."""
    found = dict(lost_at)
    for place, count in more.items():
        found[place] = found.pop(place, 0) + count
    return found if len(found) <= most else dict(list(found.items())[-most:])


NO_PLACES = Places(np.zeros(0, np.int64), [].__getitem__)
