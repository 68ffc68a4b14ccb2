"""Spans of finished units on their way out, parents first: in pieces, so that each is counted when it is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.spans.folded_sums import ToldOfKept
from otel_recfn.sinks.spans.hooked_spans import part_that_was_made
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.sinks.spans.mapping import NOTHING_TOLD, SpanMapper
from otel_recfn.sinks.spans.place_of_span import DROPPED
from otel_recfn.sinks.spans.summaries import Summaries

ToldByRow = Mapping[int, Mapping[str, AttributeValue]]


class Sent(NamedTuple):
    """What was made of a part of a piece."""

    spans: list[ReadableSpan]
    folded: int
    """Ranges that these spans alone tell of."""
    kept: int = 0
    """How many were of ranges; the program's hook may have dropped some."""
    plan: SpanPlan | None = None
    """Of those that are."""
    told: int = 0
    """Of how many losses the first of them tells."""

    @property
    def dropped(self) -> int:
        """How many spans of ranges the hook dropped."""
        return self.kept - len(self.spans) if self.kept else 0

    @property
    def summaries(self) -> int:
        """How many spans are of no range."""
        return 0 if self.kept else len(self.spans)


class KeptSpans:
    """The spans of ranges that were kept.

    Args:
        plan: of these ranges alone, in the order in which they go out.
        told: what they say of folded ones; None: nothing.
        folded: how many each tells of.
    """

    def __init__(self, plan: SpanPlan, told: ToldOfKept, folded: NDArray[np.int64]) -> None:
        self._plan, self._told, self._folded = plan, told, folded

    def __len__(self) -> int:
        return len(self._plan.row)

    def plan(self, first: int) -> SpanPlan | None:
        """Of the spans from ``first`` on."""
        return self._plan.part(slice(first, None))

    def make(self, mapper: SpanMapper, first: int, last: int, lost: int = 0) -> Sent:
        """The spans of this part; the first tells of so many losses."""
        plan = self._plan.part(slice(first, last))
        told = self._told.of(plan.row)
        spans = mapper.spans(plan, telling(lost, plan, told))
        folded = int(self._folded[first:last].sum())
        return Sent(spans, folded, len(plan.row), part_that_was_made(plan, spans), lost)


class SummarySpans:
    """Spans for folded ranges.

    Args:
        summaries: all of the units that were finished together.
        first, last: which of them.
    """

    def __init__(self, summaries: Summaries, first: int, last: int) -> None:
        self._summaries, self._first, self._last = summaries, first, last

    def __len__(self) -> int:
        return self._last - self._first

    def plan(self, first: int) -> SpanPlan | None:
        """None: they are of no range."""
        del first
        return None

    def make(self, mapper: SpanMapper, first: int, last: int, lost: int = 0) -> Sent:
        """The spans of this part, which tell of no losses."""
        part = slice(self._first + first, self._first + last)
        return Sent(mapper.summaries(self._summaries.make(part)), self._summaries.folded(part))


def telling(lost: int, plan: SpanPlan, told: ToldByRow = NOTHING_TOLD) -> ToldByRow:
    """What rows tell, and the first row of the plan of losses, if there are any."""
    if not lost:
        return told
    first = int(plan.row[0])
    return {**told, first: {**told.get(first, {}), DROPPED: lost}}


Piece = KeptSpans | SummarySpans
