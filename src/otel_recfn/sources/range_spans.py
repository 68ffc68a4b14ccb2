"""Shows the program its ranges as current spans: a span that it, or another instrumentation, opens inside one is its child.

    opentelemetry.context.get_current() ──► what is attached ──► with the innermost range's span, where that is later

Nothing is attached: the context is made when somebody asks for it inside a range, and kept with the range. It has the range's
span context; all else that is done to the current span (attributes, events, status) is done to the program's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import wrapt
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_recfn.model.events import ContextFlag, EventSource
from otel_recfn.recording.protocol import Recorder, TaskRange
from otel_recfn.support.span_ids import span_id

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SAMPLED_ALONE = int(ContextFlag.SAMPLED)
_MODULE = int(EventSource.MODULE)


class RangeSpan(wrapt.ObjectProxy):  # type: ignore[type-arg,misc,unused-ignore]
    """The program's current span, with the span context of a range below it.

    Args:
        span: the program's span.
        range_: the range.
        context: the span context of the range's span.
    """

    def __init__(self, span: trace.Span, range_: TaskRange, context: SpanContext) -> None:
        super().__init__(span)
        self._self_range, self._self_context = range_, context

    def get_span_context(self) -> SpanContext:
        """Of the range's span."""
        return self._self_context

    @property
    def context(self) -> SpanContext:
        """Of the range's span."""
        return self._self_context

    def __copy__(self) -> RangeSpan:
        return RangeSpan(copy.copy(self.__wrapped__), self._self_range, self._self_context)

    def __deepcopy__(self, memo: dict[int, Any]) -> RangeSpan:
        return RangeSpan(copy.deepcopy(self.__wrapped__, memo), self._self_range, self._self_context)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What isn't recorded goes to other processes as its span context alone; the rest refuses as it does by itself."""
        if isinstance(self.__wrapped__, trace.NonRecordingSpan):
            return trace.NonRecordingSpan, (self._self_context,)
        return self.__wrapped__.__reduce_ex__(protocol)


def range_of(span: object) -> TaskRange | None:
    """The range that a span shows, None where it is the program's own."""
    return span._self_range if type(span) is RangeSpan else None


class SpansOfRanges(Protocol):
    """Where ranges become spans. From any thread."""

    def has_target(self) -> bool:
        """Whether anything takes spans now."""

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range that has no span around it, None where there is none."""


class RangeSpans:
    """Which ranges are shown, and how.

    Args:
        recorder: knows the calling task's ranges.
        selects: whether ranges of a scope and source become spans.
        spans: where ranges become spans.
    """

    def __init__(self, recorder: Recorder, selects: Callable[[int, int], bool], spans: SpansOfRanges) -> None:
        self._recorder, self._selects, self._spans = recorder, selects, spans
        self._since = recorder.serial()
        """What began before is not sure to become a span."""

    def seen_from(self, context: Context) -> Context:
        """What the program sees as the current context: ``context``, or one with the span of a range that is later."""
        if not self._recorder.ranges_after(None):
            return context
        span = trace.get_current_span(context)
        for range_ in self._recorder.ranges_after(span):
            if range_.serial > self._since and self._selects(range_.scope, range_.source):
                return self._shown(range_, span, context)
        return context

    def _shown(self, range_: TaskRange, span: trace.Span, context: Context) -> Context:
        if range_.shown is None or range_.shown[0] is not context:
            span_context = self._span_context(range_)
            if span_context is None:
                return context
            shown_span: Any = RangeSpan(own_span(span), range_, span_context)
            range_.shown = (context, trace.set_span_in_context(shown_span, context))
        shown: tuple[Context, Context] | None = range_.shown
        return shown[1] if shown is not None else context  # None: another thread ended the range meanwhile

    def _span_context(self, range_: TaskRange) -> SpanContext | None:
        """Of the range's span; None where it has none, as below a span that is not sampled."""
        if not self._spans.has_target():
            return None
        high, low, _, words = range_.context_words
        trace_id, (flags, trace_state) = high << 64 | low, self._recorder.split_flags(words)
        if not trace_id and not flags:
            root = self._spans.trace_of(range_.root)
            return _below(root.trace_id, root.trace_state, range_) if root is not None else None
        if not trace_id or flags != _SAMPLED_ALONE:
            return None
        return _below(trace_id, TraceState.from_header([trace_state]) if trace_state else None, range_)


def _below(trace_id: int, trace_state: TraceState | None, range_: TaskRange) -> SpanContext:
    return SpanContext(trace_id, span_id(range_.event_id), False, SAMPLED, trace_state)


def selects(scopes: int, modules: bool) -> Callable[[int, int], bool]:
    """Whether a capture of those scopes (a bit each), and of module calls, has ranges of a scope and source."""
    return lambda scope, source: modules if source == _MODULE else bool(scopes >> scope & 1)


def own_span(span: Any) -> Any:
    """The program's span behind what it was shown."""
    return span.__wrapped__ if type(span) is RangeSpan else span
