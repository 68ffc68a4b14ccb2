"""Trace states of the spans that were current, beside the batches.

A batch carries a current span as three numbers. The W3C trace state that its descendants have to repeat is seldom there, so it
isn't a column: who reads the current span notes a trace state that isn't empty, and who builds spans finds it here.

Written by threads of the program and read by the sinks' threads, without a lock: each step is one operation of a dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TraceState

MAX_TRACE_STATES = 10_000
"""The oldest beyond this many are forgotten: their descendants then carry no trace state."""

_noted: dict[tuple[int, int], TraceState] = {}


def note(trace_id: int, span_id: int, trace_state: TraceState) -> None:
    """Remember the trace state of a span; an empty one takes no room."""
    if not trace_state or (trace_id, span_id) in _noted:
        return
    _noted[trace_id, span_id] = trace_state
    while len(_noted) > MAX_TRACE_STATES:
        _forget_oldest()


def find(trace_id: int, span_id: int) -> TraceState | None:
    """What was noted for the span, None where nothing was."""
    return _noted.get((trace_id, span_id))


def _forget_oldest() -> None:
    try:
        del _noted[next(iter(_noted))]
    except (StopIteration, KeyError, RuntimeError):  # another thread forgot it at the same moment
        pass
