"""Batches to the writer: each is planned, written, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from opentelemetry.trace import SpanContext, TraceState

from otel_recfn.batches.ends import cut_off_as_shown, order_of_ends
from otel_recfn.batches.links import LinkFinder, SharedLinks
from otel_recfn.batches.span_plan import Fate, fate_of, fates_of, plan_spans
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.sinks.spans.current_target import CurrentTarget
from otel_recfn.sinks.spans.open_traces import OpenTraces
from otel_recfn.sinks.spans.provider import SAMPLED
from otel_recfn.sinks.spans.surroundings import Surroundings
from otel_recfn.sinks.spans.way import Way, no_more
from otel_recfn.sinks.spans.writers import Writer

SETTLED_NS = 500_000_000
"""What ended so long ago has certainly been drained where drains find nothing."""
MOST_UNDECIDED = 1 << 16
"""So many rows may come, of batches that wait for their turn, before units are decided."""
_NO_ROWS = np.zeros(0, np.bool_)
_ROOTLESS, _IN_SPAN = int(Fate.ROOTLESS), int(Fate.IN_SPAN)
"""Comparing a column with a member of an enumeration takes numpy ten times as long as with a number."""
_logger = logging.getLogger(__name__)


class BatchWriting:
    """Of one sink. Whatever raises in the middle of it, what was being handled is dropped and counted, and it goes on.

    Args:
        target: where spans go.
        way: to there.
        surroundings: of the ranges.
        writer: of plans.
        open_traces: of ranges that are open for long.
        links: shared with other sinks of the capture; None for its own.
        folds: whether units are folded, which takes rows in the order of their ends.
    """

    def __init__(
        self,
        target: CurrentTarget,
        way: Way,
        surroundings: Surroundings,
        writer: Writer,
        open_traces: OpenTraces,
        links: SharedLinks | None,
        folds: bool,
    ) -> None:
        self._target, self._way, self._surroundings = target, way, surroundings
        self._writer, self._open_traces, self._folds = writer, open_traces, folds
        self._links: LinkFinder | SharedLinks = links or LinkFinder()
        self.has_more: Callable[[], bool] = no_more
        """Whether another batch follows at once: then units are decided for both together."""
        self._undecided = 0
        """Rows that came since it was looked last which units have ended."""
        self._logged = False

    def write(self, batch: Batch) -> None:
        """Write a batch."""
        self._way.has_more = self.has_more
        try:
            with self._guarded(len(batch)):
                self._write(batch)
        finally:
            self._way.has_more = no_more

    def write_open(self, ranges: Batch) -> None:
        """Write spans of ranges that are open for long, each once."""
        with self._guarded():
            target = self._target.use()
            if target is not None:
                self._open_traces.write(self._surroundings.without_inherited(ranges), target)

    def idle(self, now_ns: int) -> None:
        """Nothing came for a while: finish the traces of threads that rest, and what has ended."""
        with self._guarded():
            self._way.traces.close_idle(now_ns)
            self._writer.rest(now_ns - SETTLED_NS)
            self._write_ended()

    def write_last(self) -> None:
        """Write all that is left."""
        with self._guarded():
            self._way.traces.close_all()
            self._writer.write_last()
            self._way.write_roots()

    def note_gap(self) -> None:
        """Batches were lost: what they began and ended is unknown. The roots that are open end here."""
        self._way.traces.close_all()
        self._writer.note_gap()
        if isinstance(self._links, SharedLinks):
            self._links = LinkFinder()  # the others' lead to what was lost, too

    @contextmanager
    def _guarded(self, rows: int = 0) -> Iterator[None]:
        """Around what handles so many rows."""
        rows_before = self._way.accounts.counts["rows"]
        try:
            yield
        except Exception:  # of ours, or of what the program gave us
            self._drop_all(rows - (self._way.accounts.counts["rows"] - rows_before))
            if not self._logged:
                self._logged = True
                _logger.exception("otel-recfn: writing spans raised, and some rows count as failed")

    def _drop_all(self, rows: int) -> None:
        """What is left of the batch that was being written, and whatever isn't decided: nobody knows how far that got."""
        accounts = self._way.accounts
        accounts.add(rows=rows)
        accounts.counts = accounts.settled(self._way.delivery.counters()["spans"])
        self._way.traces.start_anew()
        self._writer.start_anew()

    def _write(self, batch: Batch) -> None:
        batch = cut_off_as_shown(self._surroundings.without_inherited(batch))
        target, accounts = self._target.use(), self._way.accounts
        if target is None:
            accounts.add(rows=len(batch), no_provider=len(batch))
            return
        fates = fates_of(batch)
        rootless = frozenset(index for index, one in enumerate(batch.contexts) if fate_of(one) == _ROOTLESS)
        most = int(fates.max(initial=0))
        self._way.traces.advance(batch, fates == _ROOTLESS if most >= _ROOTLESS else _NO_ROWS, rootless, target)
        self._writer.begin_batch(batch)
        if most < _IN_SPAN:  # below spans that are not sampled, say: costs next to nothing
            accounts.add_rows(fates)
        else:
            links, order = self._links.match(batch), order_of_ends(batch) if self._folds else None
            self._writer.write(plan_spans(batch, fates, links, span_context, self._root_context, order))
        self._undecided += len(batch)
        if self._undecided >= MOST_UNDECIDED or not self._way.has_more():
            self._write_ended()

    def _write_ended(self) -> None:
        self._undecided = 0
        self._writer.write_ended()
        self._way.write_roots()

    def _root_context(self, root: int) -> SpanContext | None:
        trace = self._way.traces.find(root)
        return trace.context if trace is not None else None


def span_context(context: SpanContextRef) -> SpanContext:
    """The program's span that a context stands for."""
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)
