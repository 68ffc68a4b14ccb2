"""Ranges shown to the program as current spans, so that a span which is opened inside a range is
the range's child.

    opentelemetry.context.get_current() ──► the attached context
                                        ──► a copy with the span of a range that began later

Nothing is attached. The copy is made when somebody first asks for the current context inside a
range, and is kept with the range for those who ask again while the same context is attached, whom
native code answers (``native/parents/tasks/context_functions.cpp``). The current span in it has the
range's span context; attributes, events and status that it is given go to the program's own span.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_recfn import _native
from otel_recfn.model.events import ContextFlag, EventSource
from otel_recfn.recording.types import trace_states
from otel_recfn.sources.steps import StartStep
from otel_recfn.support.span_ids import span_id as span_id_of

if TYPE_CHECKING:
    from otel_recfn._native import TaskEntry

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SAMPLED_ALONE = int(ContextFlag.SAMPLED)
_STEP = int(ContextFlag.STEP)
_STEP_SOURCE = int(EventSource.STEP)


class RangeSpan(wrapt.ObjectProxy):  # type: ignore[type-arg,misc,unused-ignore]
    """The program's current span, with the span context of the span of a range below it."""

    def __init__(self, span: trace.Span, range_: TaskEntry, context: SpanContext) -> None:
        super().__init__(span)
        self._self_range, self._self_context = range_, context

    def get_span_context(self) -> SpanContext:
        """The span context of the range's span."""
        return self._self_context

    @property
    def context(self) -> SpanContext:
        """The span context of the range's span."""
        return self._self_context

    def __copy__(self) -> RangeSpan:
        return RangeSpan(copy.copy(self.__wrapped__), self._self_range, self._self_context)

    def __deepcopy__(self, memo: dict[int, Any]) -> RangeSpan:
        return RangeSpan(
            copy.deepcopy(self.__wrapped__, memo), self._self_range, self._self_context
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a span that isn't recording as its span context alone; other spans refuse to be
        pickled, as without us.
        """
        if isinstance(self.__wrapped__, trace.NonRecordingSpan):
            return trace.NonRecordingSpan, (self._self_context,)
        return self.__wrapped__.__reduce_ex__(protocol)


def range_of(span: object) -> TaskEntry | None:
    """The range that a span shows; None if it is the program's own."""
    return span._self_range if type(span) is RangeSpan else None


class ExposedRanges(NamedTuple):
    """The choice of ranges that are shown, and what is told of their spans.

    Each may be called from any thread.
    """

    takes: Callable[[int, int], bool]
    """Whether ranges of a scope and source become spans."""
    had_begun: Callable[[int, int], bool]
    """Whether the capture, if it joined others, had begun before the range of this serial and
    event id did.
    """
    has_target: Callable[[], bool]
    """Whether anything takes spans now."""
    trace_of: Callable[[int], SpanContext | None]
    """The root span of ours above an outermost range that has no span around it, from its id;
    None if there is no root span.
    """
    is_outside: Callable[[int, int], bool]
    """Whether the span of these ids is current, but not around the ranges of this process."""
    start_step: StartStep
    """Starts the span of a step, from its name, number, code and begin in Unix nanoseconds, and
    the requests that it serves; None if nothing takes spans.
    """
    note_parent_span: Callable[[int, int, object], None]
    """Notes that a range begins below a sampled span of the program's, from its ids and itself."""


class RangeSpans:
    """The shown ranges, as spans."""

    def __init__(self, exposed: ExposedRanges) -> None:
        self._exposed = exposed
        self.since = _native.task_serial()
        """The serial before which ranges may not become spans: they are not shown, unless the
        capture had begun already. It is of this object alone, by which ranges keep what it decided.
        """

    def visible_context(self, attached: Context) -> Context:
        """The current context as the program sees it, if ``attached`` is attached."""
        if not _native.recording():
            return attached  # the newest range of an ending recording has a row that nobody gets
        span = trace.get_current_span(attached)
        for range_ in _native.ranges_after(span):
            if self._becomes_span(range_) and not _has_own_span(range_):
                return self._with_range(range_, span, attached)
            range_.hide(self.since)
        return attached

    def _with_range(self, range_: TaskEntry, span: trace.Span, attached: Context) -> Context:
        exposed: tuple[Context, Context] | None = range_.exposed
        if exposed is not None and exposed[0] is attached:
            range_.expose(self.since, *exposed)  # another one may have decided so
            return exposed[1]
        if self._is_unsampled(range_):
            range_.expose(self.since, attached, attached)
            return attached
        span_context = self._span_context(range_)
        if span_context is None:
            return attached
        range_span: Any = RangeSpan(own_span(span), range_, span_context)
        seen = trace.set_span_in_context(range_span, attached)
        # False: another thread has ended the range.
        return seen if range_.expose(self.since, attached, seen) else attached

    def _is_unsampled(self, range_: TaskEntry) -> bool:
        """Whether the range lies below a span that isn't sampled, or where instrumentation is
        suppressed, and so has no span.
        """
        trace_id = range_.trace_high << 64 | range_.trace_low
        flags, _ = trace_states.split(range_.context_flags)
        is_sampled = trace_id and flags & ~_STEP == _SAMPLED_ALONE
        has_context = trace_id or flags
        return bool(has_context and not is_sampled) and not self._exposed.is_outside(
            trace_id, range_.span_id
        )

    def _span_context(self, range_: TaskEntry) -> SpanContext | None:
        """The span context of the range's span, if it is sampled; None as long as nothing takes
        spans or there is no root span of ours for it.
        """
        if not self._exposed.has_target():
            return None
        trace_id = range_.trace_high << 64 | range_.trace_low
        flags, trace_state = trace_states.split(range_.context_flags)
        if not (trace_id or flags) or self._exposed.is_outside(trace_id, range_.span_id):
            root = self._exposed.trace_of(self._root_of(range_))
            return _below(root.trace_id, root.trace_state, range_) if root is not None else None
        return _below(
            trace_id, TraceState.from_header([trace_state]) if trace_state else None, range_
        )

    def _becomes_span(self, range_: TaskEntry) -> bool:
        """Whether the range, which is recorded, becomes a span."""
        began_later = range_.began > self.since or self._exposed.had_begun(
            range_.began, range_.event_id
        )
        return began_later and self._exposed.takes(range_.scope, range_.source)

    def _root_of(self, range_: TaskEntry) -> int:
        """The outermost range around it that becomes a span: others were recorded for captures
        that began before.
        """
        is_known = range_.event_id == range_.root
        becoming = range_
        outer_range = range_.outer
        while (
            outer_range is not None
        ):  # also through ranges that have ended, while this one goes on
            if outer_range.root == range_.root:
                is_known = is_known or outer_range.event_id == range_.root
                becoming = outer_range if self._becomes_span(outer_range) else becoming
            outer_range = outer_range.outer
        if is_known:
            return becoming.event_id
        return (
            range_.root
            if self._exposed.takes(range_.scope, EventSource.PYTHON_CALL)
            else becoming.root_without_calls
        )


def _has_own_span(range_: TaskEntry) -> bool:
    """Whether it is a step with a span of the program's."""
    return (
        range_.source == _STEP_SOURCE
        and range_.root == range_.event_id
        and bool(range_.context_flags & _STEP)
    )


def _below(trace_id: int, trace_state: TraceState | None, range_: TaskEntry) -> SpanContext:
    return SpanContext(trace_id, span_id_of(range_.event_id), False, SAMPLED, trace_state)


def own_span(span: Any) -> Any:
    """The program's span behind a shown one."""
    return span.__wrapped__ if type(span) is RangeSpan else span
