"""OpenTelemetry's current context: read for the recorder, watched for changes, and used to show
ranges to the program.

``attach`` and ``detach`` are the only ways to set the current context, ``get_current`` the only way
to read it. We wrap the three on OpenTelemetry's runtime context object, because every call ends
there, however the caller imported the functions. That object has a private name. Without it, we
wrap the public functions; who imported those before keeps the unwrapped ones.

What stands there is native (``native/parents/tasks/context_functions.cpp``), and asks us only where
it meets a range or a context for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TraceFlags, propagation

from otel_recfn import _native
from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import ContextReading, trace_states
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.sources.range_spans import ExposedRanges, RangeSpans, range_of
from otel_recfn.sources.steps import begins_now, exposed_steps, is_suppressed
from otel_recfn.support.foreign import ReplacedFunction
from otel_recfn.support.forks import current_own_thread
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log
from otel_recfn.support.processes import thread_inherited_span
from otel_recfn.support.seen_spans import seen_spans

SPAN_KEY: str | None = getattr(propagation, "_SPAN_KEY", None)
"""The key of the current span in a context; None if this OpenTelemetry has another one."""

VARIABLE = "_current_context"
"""The attribute of OpenTelemetry's own runtime context that has the ContextVar."""
METHODS_CALLED = {"attach": "set", "detach": "reset", "get_current": "get"}
"""What its functions call there."""


class ContextWatcher(Source):
    """The connection of OpenTelemetry's current context with a recorder.

    A source without rows of its own.
    """

    name = "context"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watched: dict[str, ReplacedFunction] = {}
        """The functions by name, with what stands in their place."""
        self._exposed: ExposedRanges | None = None
        self._ranges: RangeSpans | None = None

    def enable(self, wanted: Wanted) -> None:
        """Wrap the three functions, be the recorder's context reader, and show ranges to the
        program.
        """
        if not self._watched:
            self._watch()
            self._recorder.set_context_reader(self.read)
        if wanted.exposed != self._exposed:
            self._expose(wanted.exposed)

    def disable(self) -> None:
        """Remove the wrappers; if somebody wrapped a function after us, our wrapper stays and
        only passes calls on.
        """
        self._expose(None)
        self._recorder.set_context_reader(None)
        self._leave()

    def _expose(self, exposed: ExposedRanges | None) -> None:
        exposed_steps.attached = self._attached_context
        exposed_steps.start_span = exposed.start_step if exposed is not None else None
        self._exposed = exposed
        self._ranges = RangeSpans(exposed) if exposed is not None else None
        watched = self._watched.get("get_current")
        if watched is not None:
            watched.replacement.exposed_by = self._ranges.since if self._ranges is not None else 0

    def read(self) -> ContextReading | None:
        """The current context of the calling thread or task; None if there is none."""
        context = self._context_without_ranges(self._attached_context())
        span = trace.get_current_span(context)
        # What a span processor of the program's runs in our thread would become spans, for which it
        # would run again.
        is_ours = current_own_thread() is not None
        flags = ContextFlag.SUPPRESSED if is_ours or is_suppressed(context) else ContextFlag.NONE
        if begins_now(span):
            flags |= ContextFlag.STEP
        range_ = range_of(span)
        if range_ is not None and range_.is_current:
            return ContextReading(
                trace_id=range_.trace_high << 64 | range_.trace_low,
                span_id=range_.span_id,
                flags=range_.context_flags | flags,
                enclosing=range_.event_id,
                root=range_.root,
                span=span,
            )
        return self._span_reading(span, flags)

    def _span_reading(self, span: trace.Span, flags: ContextFlag) -> ContextReading | None:
        span_context = span.get_span_context()
        if not span_context.is_valid:
            return self._parent_reading(span, flags)
        seen_spans.note(span_context.trace_id, span_context.span_id, span)
        if span_context.trace_flags.sampled:
            flags |= ContextFlag.SAMPLED
            if self._exposed is not None:
                self._exposed.note_parent_span(span_context.trace_id, span_context.span_id, span)
        state_number = (
            trace_states.keep(span_context.trace_state.to_header())
            if span_context.trace_state
            else 0
        )
        return ContextReading(
            span_context.trace_id, span_context.span_id, int(flags) | state_number, span=span
        )

    def _parent_reading(self, span: trace.Span, flags: ContextFlag) -> ContextReading | None:
        """A reading without a current span, but for the span that a child was forked in, in the
        thread where it begins.
        """
        inherited_span = thread_inherited_span()
        if inherited_span is None:
            return ContextReading(0, 0, int(flags), span=span) if flags else None
        if TraceFlags(inherited_span.flags).sampled:
            flags |= ContextFlag.SAMPLED
        state_number = (
            trace_states.keep(inherited_span.trace_state) if inherited_span.trace_state else 0
        )
        return ContextReading(
            inherited_span.trace_id, inherited_span.span_id, int(flags) | state_number, span=span
        )

    def _attached_context(self) -> Context:
        """The attached context, without our ranges and steps."""
        watched = self._watched.get("get_current")
        context: Context = (watched.original if watched is not None else otel_context.get_current)()
        return context

    def _context_without_ranges(self, attached: Context) -> Context:
        """The current context, with a step's span, or with that of the thread for which PyTorch
        works in this one.
        """
        seen = _native.current_in_step(attached)
        launching = _native.launching_span()
        if launching is None or trace.get_current_span(seen) is not trace.INVALID_SPAN:
            return seen
        return trace.set_span_in_context(launching, seen)

    def _watch(self) -> None:
        _native.set_span_lookup(SPAN_KEY, trace.INVALID_SPAN, trace.get_current_span)
        for target in (getattr(otel_context, "_RUNTIME_CONTEXT", None), otel_context):
            try:
                for name in ("attach", "detach", "get_current"):
                    function = ReplacedFunction(target, name, self._replacement)
                    # Before it is installed, so that none is left there that nobody knows.
                    self._watched[name] = function
                    function.install()
            except (AttributeError, TypeError):  # not there, or its class allows no attributes
                self._leave()
            else:
                return

    def _replacement(self, name: str, original: Callable[..., Any]) -> _native.ContextFunction:
        return _native.ContextFunction(
            name, original, _variable_called(name, original), self._visible_context
        )

    def _leave(self) -> None:
        for function in self._watched.values():
            function.replacement.active = False
            function.remove()
        self._watched = {}

    def _visible_context(self, attached: Context) -> Context:
        """What the program sees of the attached context.

        Called where native code doesn't know. Raises nothing into the program, but for what a
        signal handler of the program's raises.
        """
        try:
            # Kept, because another thread may end showing.
            seen = self._context_without_ranges(attached)
            ranges = self._ranges
            return ranges.visible_context(seen) if ranges is not None else seen
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            log.debug("the current context can't be shown", exc_info=True)
            return attached


def _variable_called(name: str, original: Callable[..., Any]) -> ContextVar[Context] | None:
    """The ContextVar of which a function of OpenTelemetry's runtime context calls a method, and
    does nothing else; None if it is another one's, or does more.
    """
    # Of this very type: wrapt's wrappers say that they are of it, with their function's code.
    if type(original) is not MethodType or not isinstance(original.__func__, FunctionType):
        return None
    if original.__func__.__code__.co_names != (VARIABLE, METHODS_CALLED[name]):
        return None
    variable = getattr(original.__self__, VARIABLE, None)
    return variable if isinstance(variable, ContextVar) else None
