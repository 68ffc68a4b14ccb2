"""Who writes plans of spans: every range as a span, or a unit's longest with the sums of the others.

plan ──► EveryRange ──► chunks of spans ──► delivery
plan ──► Folded ──► (units that are decided) ──► pieces ──► chunks of spans ──► delivery
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from otel_recfn.batches.span_plan import Fates, Places, SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.spans.folding import Folding
from otel_recfn.sinks.spans.hooked_spans import part_that_was_made
from otel_recfn.sinks.spans.outgoing import KeptSpans, Piece, telling
from otel_recfn.sinks.spans.pending import Pending
from otel_recfn.sinks.spans.told_losses import Telling
from otel_recfn.sinks.spans.way import Way
from otel_recfn.support.insisting import insist

MOST_WAITING_SPANS = 1 << 14
"""So many spans of decided units, some 500 bytes each, may wait for exporters while more rows come."""
BURST = 2.5
"""So many times as many spans as there may be in the long run, beyond one for each unit, are sent in a second of many.
While they are made and exported, the program can't compute in Python."""
LEAST_BURST_PER_SECOND = 2500.0
"""As many as this in any case."""
MOST_LATE_S = 2.0
"""So long spans may wait because of that."""


class Writer(Protocol):
    """Writes plans of spans."""

    def begin_batch(self, batch: Batch) -> None:
        """A batch comes."""

    def write(self, plan: SpanPlan, pending: Pending) -> None:
        """Write the spans of a batch; ``pending`` is told which rows are taken."""

    def write_ended(self) -> None:
        """Write what nothing more can come to."""

    def rest(self, now_ns: int) -> None:
        """Nothing came for a while."""

    def give_up(self) -> None:
        """The time is over: only what earlier spans need is still to be written."""

    def write_last(self) -> None:
        """Write all that is left."""

    def note_gap(self) -> None:
        """Batches were lost."""

    @property
    def waits(self) -> bool:
        """Whether spans wait for room at the exporters."""


class EveryRange:
    """Every range becomes a span, in the order of their ends."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def begin_batch(self, batch: Batch) -> None:
        """Nothing is to be noted."""

    def write(self, plan: SpanPlan, pending: Pending) -> None:
        """Write a plan in chunks of spans; each chunk counts the rows up to the next one's first span."""
        first = 0
        while True:
            self._way.pace()
            chunk = min(self._way.delivery.chunk_size, len(plan.row) - first)
            self._way.delivery.make_room(chunk, self._way.pace)
            first += self._write_chunk(plan.part(slice(first, None)), chunk, pending)
            if first >= len(plan.row):
                return

    def _write_chunk(self, rest: SpanPlan, most: int, pending: Pending, *, is_again: bool = False) -> int:
        """Write a chunk; where there is no memory for all its spans at once, half of it, and so on. Returns how many they are.

        Args:
            rest: of the spans that are left.
            most: so many of them.
            pending: the batch.
            is_again: the first one raised before.
        """
        way = self._way
        try:
            tells = way.telling(rest) if way.mapper is not None else Telling(0, most, way.losses.told)
            chunk = min(most, tells.spans)
            plan = rest.part(slice(chunk))
            spans = way.mapper.spans(plan, telling(tells.lost, plan)) if way.mapper is not None else []
        except OUT_OF_MEMORY:
            if most < 2:
                raise
            return self._write_chunk(rest, most // 2, pending)
        except Exception as error:
            way.note_error(error)
            if is_again and most < 2:
                return self._leave_out(rest, most, pending)
            return self._write_chunk(rest, max(1, most // 2), pending, is_again=most < 2)
        end = int(rest.row[chunk]) if chunk < len(rest.row) else len(rest.batch)
        dropped = len(plan.row) - len(spans)
        counts = way.accounts.plus_rows(plan.fate, pending.taken, end, dropped_by_hook=dropped)
        handed, told = way.delivery.with_more(spans, tells.lost), tells.told
        way.accounts.counts, pending.taken, way.delivery.handed, way.losses.told = counts, end, handed, told
        way.delivery.hand()
        if way.sent is not None:
            way.sent(part_that_was_made(plan, spans))
        return chunk

    def _leave_out(self, rest: SpanPlan, count: int, pending: Pending) -> int:
        """These first ones can't be made."""
        end = int(rest.row[count]) if count < len(rest.row) else len(rest.batch)
        counts = self._way.accounts.plus_rows(rest.fate, pending.taken, end, failed=count)
        self._way.accounts.counts, pending.taken = counts, end
        return count

    def write_ended(self) -> None:
        """All is written."""

    def rest(self, now_ns: int) -> None:
        """All is written."""

    def give_up(self) -> None:
        """All is written."""

    def write_last(self) -> None:
        """All is written."""

    def note_gap(self) -> None:
        """Nothing is open."""

    @property
    def waits(self) -> bool:
        """None do."""
        return False


@dataclass(slots=True)
class _Taken:
    """Rows of a batch that were taken, and are not counted yet."""

    fates: Fates
    first: int
    last: int
    row: Places
    """Those of them that come to units, and later ones."""
    places: Places | None
    """See ``_in_order``."""
    added: int = 0
    """How many of them came to units."""


class Folded:
    """The longest ranges of each unit become spans, and the others sums.

    Args:
        way: to the processors.
        folding: of units.
        per_second: how many spans there may be in the long run; None where they are not limited.
    """

    def __init__(self, way: Way, folding: Folding, per_second: float | None = None) -> None:
        self._way, self._folding = way, folding
        self._rest_s = 1 / max(LEAST_BURST_PER_SECOND, BURST * per_second) if per_second is not None else 0.0
        """After each span."""
        self._rest_until = 0.0
        """The moment of the monotonic clock until which nothing more is sent, unless much waits."""
        self._waiting_since = 0.0
        """When there were no pieces last."""
        self._decided: Sequence[Piece] = ()
        """Of units that were decided last."""
        self._pieces: tuple[Piece, ...] = ()
        self._sent = 0
        """How much of the first piece has gone."""
        self._uncounted: _Taken | None = None

    def begin_batch(self, batch: Batch) -> None:
        """Note which outermost ranges began."""
        self._folding.begin_batch(batch)

    def write(self, plan: SpanPlan, pending: Pending) -> None:
        """Add a plan to its units; one that is full is written in part."""
        self._send()
        rest, (fates, places) = plan, _in_order(plan.fate, pending.order)
        while True:
            part = _Taken(fates, pending.taken, len(plan.batch), rest.row, places)  # before: there may be no memory afterwards
            part.added = added = self._folding.add(rest) if len(rest.row) else 0
            if added < len(rest.row):
                insist(_find_last, part)  # else they would be added again
            self._uncounted, pending.taken = part, part.last
            self._queue(self._folding.full(added))
            if added == len(rest.row):
                return
            rest = rest.part(slice(added, None))

    def write_ended(self) -> None:
        """Write the units to which nothing more can come."""
        self._send()
        self._queue(self._folding.due(self._way.traces.finished))

    def rest(self, now_ns: int) -> None:
        """What had ended by then has come."""
        self._folding.rest(now_ns)

    def give_up(self) -> None:
        """Drop all but what earlier spans need."""
        self._take_decided()
        self._decided = self._folding.all(self._way.traces.finished)
        self._take_decided()
        pieces: list[Piece] = []
        dropped = 0
        for piece in self._pieces:
            first = self._sent if not pieces else 0
            needed = piece.needed(first)
            dropped += piece.ranges(first) - needed.ranges(0)
            pieces.append(needed)
        self._way.accounts.counts = self._way.accounts.plus(failed=dropped, folding=-dropped)
        self._pieces, self._sent = tuple(pieces), 0

    def write_last(self) -> None:
        """Write all units."""
        self._send()
        self._queue(self._folding.all(self._way.traces.finished))

    def note_gap(self) -> None:
        """What is open isn't known any more."""
        self._folding.note_gap()

    @property
    def waits(self) -> bool:
        """Whether decided units do."""
        return bool(self._pieces)

    def _queue(self, pieces: Sequence[Piece]) -> None:
        self._decided = pieces
        self._send()

    def _take_decided(self) -> None:
        if not self._pieces:
            self._waiting_since = time.monotonic()
        self._pieces, self._decided = (*self._pieces, *self._decided), ()

    def _send(self) -> None:
        self._take_decided()
        self._count()
        way, lost = self._way, self._folding.lost
        if lost:
            way.accounts.counts, self._folding.lost = way.accounts.plus(failed=lost, folding=-lost), 0
        has_sent = False
        while self._pieces and way.mapper is not None:
            piece = self._pieces[0]
            if self._sent >= len(piece):
                self._pieces, self._sent = self._pieces[1:], 0
                continue
            if has_sent and way.has_more() and self._few_wait():
                return  # making and exporting many holds up folding for so long that rows would have to be dropped
            way.pace(self._owed_s())
            last = min(self._sent + way.delivery.chunk_size, len(piece))
            if self._may_be_held() and not way.delivery.has_room(last - self._sent):
                return
            before = self._sent
            self._send_part(piece, last)
            has_sent = True
            self._note_sent(self._sent - before)

    def _note_sent(self, spans: int) -> None:
        free = min(spans, self._folding.free_spans)
        self._folding.free_spans -= free
        self._rest_until = time.monotonic() + self._rest_s * (spans - free)

    def _may_be_held(self) -> bool:
        """Whether what is decided may wait for an exporter, so that rows that wait are folded and need not be dropped."""
        return (self._way.has_more() or self._way.delivery.holds) and self._few_wait()

    def _owed_s(self) -> float:
        """Nothing where the thread has more to do than it can."""
        now = time.monotonic()
        if self._way.has_more() or not self._few_wait() or now > self._waiting_since + MOST_LATE_S:
            return 0.0
        return max(0.0, self._rest_until - now)

    def _few_wait(self) -> bool:
        return sum([len(piece) for piece in self._pieces]) - self._sent < MOST_WAITING_SPANS

    def _more_ranges_come(self) -> bool:
        """Whether a later piece has spans of ranges."""
        return any(len(piece) and isinstance(piece, KeptSpans) for piece in islice(self._pieces, 1, None))

    def _count(self) -> None:
        if self._uncounted is not None:
            taken = self._uncounted
            counts = self._way.accounts.plus_rows(taken.fates, taken.first, taken.last, folding=taken.added)
            self._way.accounts.counts, self._uncounted = counts, None

    def _send_part(self, piece: Piece, last: int, *, is_again: bool = False) -> None:
        """Send a piece up to ``last``, or half of that where there is no memory for more. ``is_again``: the first raised."""
        way, first = self._way, self._sent
        way.delivery.make_room(last - first, way.pace)
        try:
            rest = piece.plan(first)
            tells = way.telling(rest, more_comes=self._more_ranges_come()) if rest is not None else None
            if tells is not None:
                last = min(last, first + tells.spans)
            made = piece.make(way.mapper, first, last, tells.lost if tells else 0) if way.mapper is not None else None
        except OUT_OF_MEMORY:
            if last - first < 2:
                raise
            self._send_part(piece, (first + last) // 2)
            return
        except Exception as error:
            way.note_error(error)
            if is_again and last - first < 2:
                self._leave_out(piece, last)
            else:
                self._send_part(piece, max(first + 1, (first + last) // 2), is_again=last - first < 2)
            return
        if made is None:
            return
        counts = way.accounts.plus(
            summaries=made.summaries, folded=made.folded, folding=-made.kept - made.folded, dropped_by_hook=made.dropped
        )
        handed, told = way.delivery.with_more(made.spans, made.told), tells.told if tells else way.losses.told
        way.accounts.counts, self._sent, way.delivery.handed, way.losses.told = counts, last, handed, told
        way.delivery.hand()
        if way.sent is not None and made.plan is not None:
            way.sent(made.plan)

    def _leave_out(self, piece: Piece, last: int) -> None:
        """This part can't be made."""
        ranges = piece.ranges(self._sent) - piece.ranges(last)
        self._way.accounts.counts, self._sent = self._way.accounts.plus(failed=ranges, folding=-ranges), last


def _find_last(taken: _Taken) -> None:
    """The row before which the first one is that didn't come to a unit."""
    row = taken.row[taken.added]
    taken.last = int(row if taken.places is None else taken.places[row])


def _in_order(fates: Fates, order: Places | None) -> tuple[Fates, Places | None]:
    """The fates of rows that are taken in this order, and which place in it each row has."""
    if order is None:
        return fates, None
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return fates[order], places
