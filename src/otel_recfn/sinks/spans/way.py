"""From rows to processors: what all who write need; and the roots of traces of our own, which all of them send alike."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.paced import Paces
from otel_recfn.sinks.spans.accounts import Accounts
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.told_losses import Telling, ToldLosses
from otel_recfn.sinks.spans.trace_boundaries import StepTrace
from otel_recfn.sinks.spans.way_out import Delivery
from otel_recfn.support.interrupts import raised_by_signal_handler

_logger = logging.getLogger(__name__)


class Way:
    """Of one sink.

    Attributes:
        delivery: where spans go.
        accounts: what became of rows.
        traces: of our own.
        sent: is given each plan whose spans have been handed to the processors; None for nobody.
        losses: what is to be told of what never arrived.
        mapper: makes spans, of the current target; None before there is one.
        pace: is called before every chunk.
        has_more: whether rows wait that are to be folded before anything waits for an exporter.
    """

    def __init__(
        self,
        delivery: Delivery,
        traces: StepTraces,
        sent: Callable[[SpanPlan], None] | None,
        losses: ToldLosses,
    ) -> None:
        self.delivery, self.traces, self.accounts, self.sent = delivery, traces, Accounts(), sent
        self.losses = losses
        self.mapper: SpanMapper | None = None
        self.pace: Paces = no_pause
        self.has_more: Callable[[], bool] = no_more
        self._logged = False

    def telling(self, plan: SpanPlan, *, more_comes: bool = False) -> Telling:
        """What the first span of a plan is to tell of losses; see ``ToldLosses.telling``."""
        return self.losses.telling(self.accounts.counts["failed"], plan, more_comes=more_comes)

    def note_error(self, error: Exception) -> None:
        """Spans can't be made that somebody else's code raises for, or ours: they count as failed.

        Raises:
            Exception: the error, where it is a signal handler's.
        """
        if raised_by_signal_handler(error):
            raise error
        if not self._logged:
            self._logged = True
            _logger.error("otel-recfn: a span could not be made, and counts as failed", exc_info=error)

    def write_roots(self) -> None:
        """Hand on the roots of the traces that are complete."""
        finished, mapper = self.traces.finished, self.mapper
        while finished and mapper is not None:
            if self.delivery.holds and not self.delivery.has_room(min(len(finished), self.delivery.chunk_size)):
                return
            traces, spans = self._made_roots(finished, mapper)
            folded, failed = sum([trace.folded_ranges for trace in traces]), not spans
            self.delivery.make_room(len(spans), self.pace)
            fate = {"failed": folded} if failed else {"folded": folded}
            counts = self.accounts.plus(roots=len(spans), folding=-folded, **fate)
            handed, rest = self.delivery.with_more(spans), deque(islice(finished, len(traces), None))
            self.accounts.counts, self.delivery.handed, self.traces.finished = counts, handed, rest
            self.delivery.hand()
            finished = rest

    def _made_roots(self, finished: Iterable[StepTrace], mapper: SpanMapper) -> tuple[list[StepTrace], list[ReadableSpan]]:
        """The first traces and their roots; where one can't be made, the first trace, and none if it is that one."""
        traces = list(islice(finished, self.delivery.chunk_size))
        try:
            return traces, [mapper.root_span(trace) for trace in traces]
        except OUT_OF_MEMORY:
            raise
        except Exception as error:
            self.note_error(error)
        try:
            return traces[:1], [mapper.root_span(traces[0])]
        except OUT_OF_MEMORY:
            raise
        except Exception:
            return traces[:1], []


def no_more() -> bool:
    """Where batches come one by one."""
    return False


def no_pause(owed_s: float = 0.0) -> None:
    """The pace where nobody asked for one: nobody sleeps between chunks."""
