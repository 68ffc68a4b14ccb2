"""Batches to the writer: each is planned once, and where memory fails in the middle of it, or anything raises, cut to what must
not be missing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

import numpy as np
from opentelemetry.trace import SpanContext, TraceState

from otel_recfn.batches.ends import cut_off_as_shown, order_of_ends
from otel_recfn.batches.links import LinkFinder, SharedLinks
from otel_recfn.batches.span_plan import Fate, fate_of, fates_of, plan_spans
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.spans.current_target import CurrentTarget
from otel_recfn.sinks.spans.pending import Pending, PendingBatches
from otel_recfn.sinks.spans.provider import SAMPLED
from otel_recfn.sinks.spans.surroundings import Surroundings
from otel_recfn.sinks.spans.way import Way, no_more
from otel_recfn.sinks.spans.writers import Writer
from otel_recfn.support.insisting import insist
from otel_recfn.support.interrupts import raised_by_signal_handler

MOST_UNDECIDED = 1 << 16
"""So many rows may come, of batches that wait for their turn, before units are decided."""
_NO_ROWS = np.zeros(0, np.bool_)
_ROOTLESS, _IN_SPAN = int(Fate.ROOTLESS), int(Fate.IN_SPAN)
"""Comparing a column with a member of an enumeration takes numpy ten times as long as with a number."""
_logger = logging.getLogger(__name__)


class BatchWriting:
    """Of one sink.

    Args:
        target: where spans go.
        way: to there.
        surroundings: of the ranges.
        writer: of plans.
        links: shared with other sinks of the capture; None for its own.
        folds: whether units are folded, which takes rows in the order of their ends.
    """

    def __init__(
        self,
        target: CurrentTarget,
        way: Way,
        surroundings: Surroundings,
        writer: Writer,
        links: SharedLinks | None,
        folds: bool,
    ) -> None:
        self._target, self._way, self._surroundings = target, way, surroundings
        self._writer, self._folds = writer, folds
        self._links: LinkFinder | SharedLinks = links or LinkFinder()
        self._pending = PendingBatches()
        self.has_more: Callable[[], bool] = no_more
        """Whether another batch follows at once: then units are decided for both together."""
        self._undecided = 0
        """Rows that came since it was looked last which units have ended."""
        self._has_gap = False
        """Not noted yet."""
        self._before_gap = 0
        """So many of the batches that wait came before a gap: what they tell of is unknown as soon as they are written, too."""
        self._logged: set[str] = set()

    def has_room(self) -> bool:
        """Whether few batches wait for memory; where many do, tries again to write them."""
        if not self._pending.has_room():
            self.go_on()
        return self._pending.has_room()

    def write(self, batch: Batch) -> None:
        """Write a batch. What there is no memory for counts as failed.

        Raises:
            MemoryError: nothing of it was taken.
        """
        self._pending.add(batch)
        self._way.has_more = self.has_more
        try:  # what `contextlib.suppress` is made of may itself lack memory
            self.go_on()
        except OUT_OF_MEMORY:  # even for saying so; it is pending, and will be counted
            pass
        finally:
            self._way.has_more = no_more

    def go_on(self) -> None:
        """Write what is pending; of a batch that finds no memory, or raises, only what must not be missing, now or later."""
        for _ in range(2):
            try:
                return self._write_pending()
            except OUT_OF_MEMORY:
                self._has_gap = True  # first: there may be no memory for more
                self._pending.cut_first()
                self._log_once("there was no memory for some rows, which count as failed")
            except Exception as error:  # of ours, or of what the program gave us
                self._has_gap = True
                self._pending.fail_first()
                if raised_by_signal_handler(error):
                    raise
                self._log_once("writing spans raised, and some rows count as failed")
        return None

    def _finish_pending(self) -> None:
        """As ``go_on``, where no later call does.

        Raises:
            MemoryError: some of it is left.
        """
        self.go_on()
        if self._pending.rows():
            raise MemoryError

    def write_ended(self) -> None:
        """Write what nothing more can come to."""
        self._undecided = 0
        self._writer.write_ended()
        self._way.write_roots()

    def write_last(self) -> None:
        """Write all that is left; what there is no memory for counts as failed."""
        traces, delivery = self._way.traces, self._way.delivery
        for step in (self._finish_pending, traces.close_all, self._writer.write_last, self._way.write_roots, delivery.hand):
            self._tried(step)  # no later call would; what is left of it all the same is counted below
        with contextlib.suppress(*OUT_OF_MEMORY):  # the background sink counts them as abandoned
            rows = self._pending.rows()
            self._way.accounts.counts = self._way.accounts.plus(rows=rows, failed=rows)
            self._pending.clear()

    def give_up(self, left: list[Batch]) -> None:
        """Drop what is left, here and in these batches, but for the parents of spans that were handed on, which are written.

        Each batch is taken out of the list once it is here: where there was no memory, it is called again with the rest.
        """
        traces = self._way.traces
        # Outermost ranges that were announced may be among what is dropped: nothing more is to be placed in them.
        for step in (self._writer.note_gap, partial(self._pending.give_up, left), traces.close_all, self._writer.give_up):
            self._tried(step)  # where there is no memory, what is here already is written, as far as memory goes
        self._tried(self._finish_pending)

    def note_gap(self) -> None:
        """Batches were lost: what they began and ended is unknown. It is noted before anything else is written."""
        self._has_gap, self._before_gap = True, self._pending.batches()

    def _note_gap(self) -> None:
        """The roots that are open end here."""
        self._way.traces.close_all()
        self._writer.note_gap()
        if isinstance(self._links, SharedLinks):
            self._links = LinkFinder()  # the others' lead to what was lost, too

    def _write_pending(self) -> None:
        self._way.delivery.hand()  # what is left where there was no memory in the middle
        if self._has_gap:
            self._note_gap()
            self._has_gap = False
        while (pending := self._pending.first()) is not None:
            if pending.dropped:
                counts = self._way.accounts.plus(rows=pending.dropped, failed=pending.dropped)
                self._way.accounts.counts, pending.dropped = counts, 0
            elif pending.short or pending.taken:  # it can't be planned again in the middle
                self._pending.reduce_first()
            else:
                self._write(pending)
                self._pending.finish_first()
                if self._before_gap:
                    self._note_gap()
                    self._before_gap -= 1

    def _write(self, pending: Pending) -> None:
        pending.batch = cut_off_as_shown(self._surroundings.without_inherited(pending.batch))
        pending.order = order_of_ends(pending.batch) if self._folds else None
        target, batch, accounts = self._target.use(), pending.batch, self._way.accounts
        if target is None:
            counts = accounts.plus(rows=len(batch), no_provider=len(batch))
            accounts.counts, pending.taken = counts, len(batch)
            return
        fates = fates_of(batch)
        rootless = frozenset([index for index, one in enumerate(batch.contexts) if fate_of(one) == _ROOTLESS])
        most = int(fates.max(initial=0))
        self._way.traces.advance(batch, fates == _ROOTLESS if most >= _ROOTLESS else _NO_ROWS, rootless, target)
        self._writer.begin_batch(batch)
        if most < _IN_SPAN:  # below spans that are not sampled, say: costs next to nothing
            accounts.counts, pending.taken = accounts.plus_rows(fates, pending.taken, len(batch)), len(batch)
        else:
            links = self._links.match(batch)
            plan = plan_spans(batch, fates, links, span_context, self._root_context, pending.order)
            self._writer.write(plan, pending)
        self._undecided += len(batch)
        if self._undecided >= MOST_UNDECIDED or not self._way.has_more():
            self.write_ended()

    def _root_context(self, root: int) -> SpanContext | None:
        trace = self._way.traces.find(root)
        return trace.context if trace is not None else None

    def _tried(self, step: Callable[[], object]) -> None:
        """A step that may be taken again where it finds no memory: as a drop of many rows frees some, also at once. One that
        raises is taken once more, and then the next one."""
        for _ in range(2):
            try:  # `contextlib.suppress` needs memory before it begins
                return insist(_take, step)
            except OUT_OF_MEMORY:
                return None
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                self._log_once("writing the last spans raised, and some rows count as failed")
        return None

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            _logger.exception("otel-recfn: %s", message)


def span_context(context: SpanContextRef) -> SpanContext:
    """The program's span that a context stands for."""
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)


def _take(step: Callable[[], object]) -> None:
    step()
