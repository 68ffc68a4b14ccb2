"""What becomes of the ranges in a span of the program's: spans, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_recfn.model.batch import SpanContextRef
from otel_recfn.model.events import ContextFlag

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SUPPRESSED = int(ContextFlag.SUPPRESSED)
_SAMPLED = int(ContextFlag.SAMPLED)


class Outcome(IntEnum):
    """The fate of a row, which becomes a span from ``IN_SPAN`` on."""

    OTHER_KIND = 0
    """No span: a mark, a change of memory, or a step, whose span the program has."""
    SUPPRESSED = 1
    """No span: instrumentation was suppressed."""
    UNSAMPLED = 2
    """No span: its trace isn't sampled."""
    IN_SPAN = 3
    """A span below the one that was current when the outermost range began."""
    ROOTLESS = 4
    """A span in a trace that we start, if there is one, because no span was current.

    This is the largest value.
    """


_WITHOUT, _ROOTLESS, _IN_SPAN, _UNSAMPLED = (
    Outcome.SUPPRESSED,
    Outcome.ROOTLESS,
    Outcome.IN_SPAN,
    Outcome.UNSAMPLED,
)


def outcome_of(context: SpanContextRef) -> Outcome:
    """The fate of ranges in a context."""
    # An operation on an IntFlag, or finding a member, costs as much as 20 rows.
    flags = int(context.flags)
    if flags & _SUPPRESSED:
        return _WITHOUT
    if context.trace_id == 0:
        return _ROOTLESS
    return _IN_SPAN if flags & _SAMPLED else _UNSAMPLED


def span_context(context: SpanContextRef) -> SpanContext:
    """The program's span that a context stands for."""
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)


def are_rootless(contexts: Sequence[SpanContextRef]) -> NDArray[np.bool_]:
    """Which contexts have no span around their ranges but one of ours."""
    return np.array([outcome_of(one) == _ROOTLESS for one in contexts], np.bool_)
