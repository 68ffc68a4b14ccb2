"""What never arrived, told in the trace: the nearest span of a range that is made after a loss is known says how much was lost.

    lost in a trace ──► the next span of that trace ──┐
    lost in a thread ─► the next span of that thread ─┴─► where what is to be written has none: the next span of all

Such a span may be lost itself. Then what it told counts as lost once more, and a later one tells it: all that arrived tell of
all that was lost before the last of them was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from otel_recfn.batches.number_sets import groups
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.lost_places import NOWHERE, LostAt, Place


class Telling(NamedTuple):
    """What the first of some spans tells."""

    lost: int
    spans: int
    """So many of them go with it: the next one tells of other losses."""


class Losing(Protocol):
    """A delivery, as far as it is asked here."""

    @property
    def lost(self) -> int:
        """Spans of ours that certainly nobody took."""

    @property
    def lost_tellings(self) -> int:
        """What the DROPPED attributes of these said, together."""

    @property
    def lost_at(self) -> LostAt:
        """Where that is known, of the newest of these: how many, and what they told."""


def nothing_lost() -> int:
    """Where nobody counts."""
    return 0


def lost_nowhere() -> LostAt:
    """Where nobody knows."""
    return NOWHERE


class ToldLosses:
    """Of one sink.

    Args:
        delivery: of its spans.
        recorder_lost: ranges that the recorder has lost in all.
        dropped_by_thread: those of them that running threads dropped, by the recorder's number of the thread.
    """

    def __init__(
        self,
        delivery: Losing,
        recorder_lost: Callable[[], int] = nothing_lost,
        dropped_by_thread: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._delivery, self._recorder_lost, self._dropped_by_thread = delivery, recorder_lost, dropped_by_thread
        self._recorder_lost_before = recorder_lost()
        self.queue_dropped: Callable[[], int] = nothing_lost
        """Ranges that were dropped before the sink got them."""
        self.queue_dropped_at: Callable[[], LostAt] = lost_nowhere
        """The newest of these, by place."""
        self._told, self._told_at = 0, self._lost_at()
        """What spans have said, whatever became of them; and how much of it was lost in which place."""

    def due(self, failed: int) -> int:
        """What has not been told. ``failed``: ranges for which something raised."""
        lost = self._recorder_lost() - self._recorder_lost_before + self.queue_dropped() + failed + self._delivery.lost
        return max(0, lost + self._delivery.lost_tellings - self._told)

    def telling(self, failed: int, plan: SpanPlan, *, more_comes: bool = False) -> Telling:
        """What the first span of a plan tells, which counts as told from here on.

        Args:
            failed: ranges for which something raised.
            plan: all that is written at once.
            more_comes: other plans are written right after it, in which a nearer span may be.
        """
        left = self.due(failed)
        if not left or not len(plan.row):
            return Telling(0, len(plan.row))
        lost_at, spans, first = self._lost_at(), len(plan.row), _FirstSpans(plan)
        here, elsewhere = self._with_room_for(lost_at), 0
        for place, count in lost_at.items():
            pending = min(count - self._told_at.get(place, 0), left - elsewhere)
            found = first.of(place) if pending > 0 else None
            if found or (found is None and pending > 0 and more_comes):
                spans, elsewhere = min(spans, found or spans), elsewhere + pending
            else:
                here[place] = count
        lost = left - elsewhere
        self._told, self._told_at = self._told + lost, here
        return Telling(lost, spans)

    def _lost_at(self) -> dict[Place, int]:
        by_thread = {Place(track=number): count for number, count in self._dropped_by_thread().items()}
        lost_at = dict[Place, int]()
        for each in (self._delivery.lost_at, self.queue_dropped_at(), by_thread):
            for place, count in each.items():
                lost_at[place] = lost_at.get(place, 0) + count
        return lost_at

    def _with_room_for(self, places: LostAt) -> dict[Place, int]:
        """What was told, of places that are still known."""
        return {place: self._told_at[place] for place in places if place in self._told_at}


class _FirstSpans:
    """Which of a plan's spans are the first of their traces and threads."""

    def __init__(self, plan: SpanPlan) -> None:
        above, tracks = groups(plan.above), groups(plan.batch.thread[plan.row])
        self._traces: dict[int, int] = {}
        for place, first in zip(above.numbers.tolist(), above.first.tolist(), strict=True):
            trace_id = plan.spans_above[place].trace_id
            self._traces[trace_id] = min(first, self._traces.get(trace_id, first))
        self._threads: dict[int, int] = {}
        self._tracks: dict[int, int] = {}
        for index, first in zip(tracks.numbers.tolist(), tracks.first.tolist(), strict=True):
            track = plan.batch.tracks[index]
            self._threads[track.ident - (track.ident >> 63 << 64)] = first  # as the attribute has it: with a sign
            self._tracks[track.number] = first

    def of(self, place: Place) -> int | None:
        """The nearest one to a place; None where none is near."""
        for known, value in ((self._traces, place.trace_id), (self._threads, place.thread), (self._tracks, place.track)):
            if value and value in known:
                return known[value]
        return None
