"""Decided units: what is sent of them, parents first, and what becomes of their ranges by it.

A unit is made into spans where it is sent (``sender.py``), a chunk at a time; until then it is columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.spans.mapping import DROPPED, SpanMapper
from otel_recfn.sinks.spans.span_hook import part_that_was_made
from otel_recfn.sinks.spans.summaries import Summaries, ToldOfKept
from otel_recfn.sinks.spans.trace_boundaries import StepTrace

ROOT_BYTES = 2000
"""What is known of a trace of ours takes so many."""


class Made(NamedTuple):
    """What was made of a part of a unit."""

    spans: Sequence[Any]
    """Of the SDK, or encoded ones."""
    counts: Mapping[str, int]
    """See ``accounts.py``."""
    plan: SpanPlan | None = None
    """Of those spans that are of ranges."""


class Piece(Protocol):
    """Spans of one kind; its length is how many."""

    def __len__(self) -> int: ...

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """The spans of this part. A first one that is of a range tells of so many ``dropped`` ones."""


@dataclass(eq=False)
class DecidedUnits:
    """Units that were decided together, to be sent whole or not at all."""

    pieces: Sequence[Piece]
    ranges: int
    """That they tell of."""
    nbytes: int
    """What they take in memory while they wait."""
    is_ordinary: bool = False
    """None of them failed or took unusually long: where not all can be sent, these go first."""

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def chunks(self, size: int) -> Iterator[tuple[Piece, int]]:
        """Each piece with the first of each ``size`` of its spans."""
        for piece in self.pieces:
            for first in range(0, len(piece), size):
                yield piece, first


class RootSpans:
    """The roots of traces of ours.

    Args:
        traces: what was folded directly into one is noted there.
    """

    def __init__(self, traces: Sequence[StepTrace]) -> None:
        self._traces = traces

    def __len__(self) -> int:
        return len(self._traces)

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        traces = self._traces[first:last]
        folded = sum(trace.folded_ranges for trace in traces)
        spans = [mapper.root_span(trace) for trace in traces]
        return Made(spans, {"added": len(traces), "folded": folded, "folding": -folded})


class KeptSpans:
    """The spans of ranges that were kept.

    Args:
        plan: of these ranges alone, in the order in which they go out.
        told: what they say of folded ones; None: nothing.
        folded: how many each tells of; None: none.
    """

    def __init__(self, plan: SpanPlan, told: ToldOfKept | None = None, folded: NDArray[np.int64] | None = None) -> None:
        self._plan, self._told, self._folded = plan, told, folded

    def __len__(self) -> int:
        return len(self._plan.row)

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        plan = self._plan.part(slice(first, last))
        told = self._told.of(plan.row) if self._told is not None else {}
        if dropped:
            row = int(plan.row[0])
            told = {**told, row: {**told.get(row, {}), DROPPED: dropped}}
        spans = mapper.spans(plan, told)
        kept, folded = last - first, int(self._folded[first:last].sum()) if self._folded is not None else 0
        counts = {"folded": folded, "folding": -kept - folded, "unsampled": kept - len(spans)}
        return Made(spans, counts, part_that_was_made(plan, spans))


class SummarySpans:
    """Spans for folded ranges.

    Args:
        summaries: all of the units that were decided together.
        begin, end: which of them.
    """

    def __init__(self, summaries: Summaries, begin: int, end: int) -> None:
        self._summaries, self._begin, self._end = summaries, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        part = slice(self._begin + first, self._begin + last)
        spans, folded = mapper.summaries(self._summaries.make(part)), self._summaries.folded(part)
        return Made(spans, {"added": len(spans), "folded": folded, "folding": -folded})


def roots_alone(finished: Sequence[StepTrace], sent: Iterable[StepTrace]) -> list[DecidedUnits]:
    """The roots of finished traces that are not sent with a unit."""
    with_units = set(sent)
    others = [trace for trace in finished if trace not in with_units]
    return [DecidedUnits([RootSpans(others)], 0, len(others) * ROOT_BYTES)] if others else []
