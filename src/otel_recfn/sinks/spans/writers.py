"""Who writes plans of spans: every range as a span, or a unit's longest with the sums of the others.

plan ──► EveryRange ──► chunks of spans ──► delivery
plan ──► Folded ──► (units that are decided) ──► pieces ──► chunks of spans ──► delivery
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.folding import Folding
from otel_recfn.sinks.spans.hooked_spans import part_that_was_made
from otel_recfn.sinks.spans.outgoing import KeptSpans, Piece, telling
from otel_recfn.sinks.spans.way import Way

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

    def write(self, plan: SpanPlan) -> None:
        """Write the spans of a batch, and count all of its rows."""

    def write_ended(self) -> None:
        """Write what nothing more can come to."""

    def rest(self, now_ns: int) -> None:
        """Nothing came for a while."""

    def write_last(self) -> None:
        """Write all that is left."""

    def note_gap(self) -> None:
        """Batches were lost."""

    def start_anew(self) -> None:
        """Something raised: drop all that isn't written. It has been counted as failed."""

    @property
    def waits(self) -> bool:
        """Whether spans wait for room at the exporters."""


class EveryRange:
    """Every range becomes a span, in the order of their ends."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def begin_batch(self, batch: Batch) -> None:
        """Nothing is to be noted."""

    def write(self, plan: SpanPlan) -> None:
        """Write a plan in chunks of spans; each chunk counts the rows up to the next one's first span."""
        way, first, counted = self._way, 0, 0
        while True:
            way.pace()
            chunk = min(way.delivery.chunk_size, len(plan.row) - first)
            way.delivery.make_room(chunk, way.pace)
            rest = plan.part(slice(first, None))
            tells = way.telling(rest)
            part = rest.part(slice(min(chunk, tells.spans)))
            spans = way.mapper.spans(part, telling(tells.lost, part))
            first += len(part.row)
            end = int(plan.row[first]) if first < len(plan.row) else len(plan.batch)
            way.accounts.add_rows(plan.fate[counted:end], dropped_by_hook=len(part.row) - len(spans))
            way.deliver(spans, part_that_was_made(part, spans), tells.lost)
            counted = end
            if first >= len(plan.row):
                return

    def write_ended(self) -> None:
        """All is written."""

    def rest(self, now_ns: int) -> None:
        """All is written."""

    def write_last(self) -> None:
        """All is written."""

    def note_gap(self) -> None:
        """Nothing is open."""

    def start_anew(self) -> None:
        """Nothing is kept."""

    @property
    def waits(self) -> bool:
        """None do."""
        return False


class Folded:
    """The longest ranges of each unit become spans, and the others sums.

    Args:
        way: to the processors.
        make_folding: of units.
        per_second: how many spans there may be in the long run; None where they are not limited.
    """

    def __init__(self, way: Way, make_folding: Callable[[], Folding], per_second: float | None = None) -> None:
        self._way, self._make_folding, self._folding = way, make_folding, make_folding()
        self._rest_s = 1 / max(LEAST_BURST_PER_SECOND, BURST * per_second) if per_second is not None else 0.0
        """After each span."""
        self._rest_until = 0.0
        """The moment of the monotonic clock until which nothing more is sent, unless much waits."""
        self._waiting_since = 0.0
        """When there were no pieces last."""
        self._pieces: deque[Piece] = deque()
        self._sent = 0
        """How much of the first piece has gone."""

    def begin_batch(self, batch: Batch) -> None:
        """Note which outermost ranges began."""
        self._folding.begin_batch(batch)

    def write(self, plan: SpanPlan) -> None:
        """Add a plan to its units; one that is full is written in part."""
        self._send()
        pieces = self._folding.add(plan)
        self._way.accounts.add_rows(plan.fate, folding=len(plan.row))
        self._send_also(pieces)

    def write_ended(self) -> None:
        """Write the units to which nothing more can come."""
        self._send()
        self._send_also(self._folding.due(self._way.traces.finished))

    def rest(self, now_ns: int) -> None:
        """What had ended by then has come."""
        self._folding.rest(now_ns)

    def write_last(self) -> None:
        """Write all units."""
        self._send()
        self._send_also(self._folding.all(self._way.traces.finished))

    def note_gap(self) -> None:
        """What is open isn't known any more."""
        self._folding.note_gap()

    def start_anew(self) -> None:
        """Drop all units."""
        self._folding = self._make_folding()
        self._pieces.clear()
        self._sent = 0

    @property
    def waits(self) -> bool:
        """Whether decided units do."""
        return bool(self._pieces)

    def _send_also(self, pieces: Iterable[Piece]) -> None:
        if not self._pieces:
            self._waiting_since = time.monotonic()
        self._pieces.extend(pieces)
        self._send()

    def _send(self) -> None:
        way, has_sent = self._way, False
        while self._pieces:
            piece = self._pieces[0]
            if self._sent >= len(piece):
                self._pieces.popleft()
                self._sent = 0
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
        return sum(len(piece) for piece in self._pieces) - self._sent < MOST_WAITING_SPANS

    def _more_ranges_come(self) -> bool:
        """Whether a later piece has spans of ranges."""
        return any(len(piece) and isinstance(piece, KeptSpans) for piece in islice(self._pieces, 1, None))

    def _send_part(self, piece: Piece, last: int) -> None:
        """Send the first piece up to ``last``, or less where what follows tells of other losses."""
        way, first, lost = self._way, self._sent, 0
        way.delivery.make_room(last - first, way.pace)
        rest = piece.plan(first)
        if rest is not None:
            tells = way.telling(rest, more_comes=self._more_ranges_come())
            last, lost = min(last, first + tells.spans), tells.lost
        made = piece.make(way.mapper, first, last, lost)
        self._sent = last
        way.accounts.add(
            summaries=made.summaries, folded=made.folded, folding=-made.kept - made.folded, dropped_by_hook=made.dropped
        )
        way.deliver(made.spans, made.plan, made.told)
