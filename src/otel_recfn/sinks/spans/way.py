"""From rows to processors: what all who write need; and the roots of traces of our own, which all of them send alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.paced import Paces
from otel_recfn.sinks.spans.accounts import Accounts
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.told_losses import Telling, ToldLosses
from otel_recfn.sinks.spans.way_out import Delivery


class Way:
    """Of one sink.

    Attributes:
        delivery: where spans go.
        accounts: what became of rows.
        traces: of our own.
        sent: is given each plan whose spans have been handed to the processors; None for nobody.
        losses: what is to be told of what never arrived.
        mapper: makes spans, of the current target. There is one before there is anything to make.
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
        self.mapper: SpanMapper
        self.pace: Paces = no_pause
        self.has_more: Callable[[], bool] = no_more

    def telling(self, plan: SpanPlan, *, more_comes: bool = False) -> Telling:
        """What the first span of a plan is to tell of losses; see ``ToldLosses.telling``."""
        return self.losses.telling(self.accounts.counts["failed"], plan, more_comes=more_comes)

    def deliver(self, spans: Sequence[Any], plan: SpanPlan | None = None, told: int = 0) -> None:
        """Hand spans on.

        Args:
            spans: as the mapper made them, or the SDK's.
            plan: of those that are of ranges.
            told: of how many losses the first of them tells.
        """
        self.delivery.deliver(spans, told)
        if self.sent is not None and plan is not None:
            self.sent(plan)

    def write_roots(self) -> None:
        """Hand on the roots of the traces that are complete."""
        finished, delivery = self.traces.finished, self.delivery
        while finished:
            count = min(len(finished), delivery.chunk_size)
            if delivery.holds and not delivery.has_room(count):
                return
            delivery.make_room(count, self.pace)
            traces = [finished.popleft() for _ in range(count)]
            spans = [self.mapper.root_span(trace) for trace in traces]
            folded = sum(trace.folded_ranges for trace in traces)
            self.accounts.add(roots=len(spans), folding=-folded, folded=folded)
            self.deliver(spans)


def no_more() -> bool:
    """Where batches come one by one."""
    return False


def no_pause(owed_s: float = 0.0) -> None:
    """The pace where nobody asked for one: nobody sleeps between chunks."""
