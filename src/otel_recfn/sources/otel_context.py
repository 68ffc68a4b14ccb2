"""OpenTelemetry's current context: read for the recorder, watched for changes, and used to show ranges to the program.

``attach`` and ``detach`` are the only ways to set the current context, ``get_current`` the only way to read it. We wrap the
three on OpenTelemetry's runtime context object, because every call ends there, however the caller imported the functions. That
object has a private name. Without it, we wrap the public functions; who imported those before keeps the unwrapped ones.
"""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TraceFlags

from otel_recfn import _native
from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import ContextReading, trace_states
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.sources.range_spans import RangeSpans, ShownRanges, range_of
from otel_recfn.sources.steps import begins_now, is_suppressed, seen_in_step, shown_steps
from otel_recfn.support.foreign import After, WrappedFunction
from otel_recfn.support.processes import span_around_thread
from otel_recfn.support.seen_spans import remember_current, seen_spans
from otel_recfn.support.signal_handlers import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

_EMPTY = Context()


class ContextWatcher(Source):
    """The connection of OpenTelemetry's current context with a recorder. A source without rows of its own."""

    name = "context"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._wrappers: list[WrappedFunction] = []
        self._shown: ShownRanges | None = None
        self._ranges: RangeSpans | None = None
        self._logged = False

    def enable(self, wanted: Wanted) -> None:
        """Wrap the three functions, be the recorder's context reader, and show ranges to the program."""
        if not self._wrappers:
            self._wrap()
            self._recorder.set_context_reader(self.read)
        if wanted.shown != self._shown:
            self._show(wanted.shown)

    def disable(self) -> None:
        """Remove the wrappers; if somebody wrapped a function after us, our wrapper stays and only passes calls on."""
        self._show(None)
        self._recorder.set_context_reader(None)
        self._unwrap()

    def _show(self, shown: ShownRanges | None) -> None:
        shown_steps.attached = self._attached_context
        shown_steps.start_span = shown.start_step if shown is not None else None
        self._shown = shown
        self._ranges = RangeSpans(shown) if shown is not None else None

    def read(self) -> ContextReading | None:
        """The current context of the calling thread or task; None if there is none, or it can't be read."""
        try:
            return self._read()
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            if not self._logged:
                self._logged = True
                log.exception(
                    "the current OpenTelemetry context cannot be read; ranges here have no parent span"
                )
            return None

    def _read(self) -> ContextReading | None:
        context = self._seen_without_ranges(self._attached_context())
        span = trace.get_current_span(context)
        flags = ContextFlag.SUPPRESSED if is_suppressed(context) else ContextFlag.NONE
        if begins_now(span):
            flags |= ContextFlag.STEP
        range_ = range_of(span)
        if range_ is not None and range_.is_current:
            high, low, span_id, own_flags = range_.context_words
            return ContextReading(
                high << 64 | low, span_id, own_flags | flags, range_.event_id, range_.root, span
            )
        return self._reading_of_span(span, flags)

    def _reading_of_span(self, span: trace.Span, flags: ContextFlag) -> ContextReading | None:
        of_span = span.get_span_context()
        if not of_span.is_valid:
            return self._reading_of_parent(span, flags)
        seen_spans.note(of_span.trace_id, of_span.span_id, span)
        if of_span.trace_flags.sampled:
            flags |= ContextFlag.SAMPLED
            if self._shown is not None:
                self._shown.saw(of_span.trace_id, of_span.span_id, span)
        kept = trace_states.keep(of_span.trace_state.to_header()) if of_span.trace_state else 0
        return ContextReading(of_span.trace_id, of_span.span_id, int(flags) | kept, span=span)

    def _reading_of_parent(self, span: trace.Span, flags: ContextFlag) -> ContextReading | None:
        """A reading without a current span, but for the span that a child was forked in, in the thread where it begins."""
        around = span_around_thread()
        if around is None:
            return ContextReading(0, 0, int(flags), span=span) if flags else None
        if TraceFlags(around.flags).sampled:
            flags |= ContextFlag.SAMPLED
        kept = trace_states.keep(around.trace_state) if around.trace_state else 0
        return ContextReading(around.trace_id, around.span_id, int(flags) | kept, span=span)

    def _attached_context(self) -> Context:
        """The attached context, without our ranges and steps."""
        for wrapper in self._wrappers:
            if wrapper.name == "get_current":
                context: Context = wrapper.original()
                return context
        return otel_context.get_current()

    def _seen_without_ranges(self, attached: Context) -> Context:
        """The current context, with a step's span, or with that of the thread for which PyTorch works in this one."""
        seen, launching = seen_in_step(attached), _native.launching_span()
        if launching is None or trace.get_current_span(seen) is not trace.INVALID_SPAN:
            return seen
        return trace.set_span_in_context(launching, seen)

    def _wrap(self) -> None:
        after: dict[str, After] = {
            "attach": self._after_attach,
            "detach": self._after_detach,
            "get_current": self._after_get_current,
        }
        for target in (getattr(otel_context, "_RUNTIME_CONTEXT", None), otel_context):
            try:
                for name, each in after.items():
                    wrapper = WrappedFunction(target, name, each)
                    self._wrappers.append(
                        wrapper
                    )  # before it is installed, so that no wrapper is left there that nobody knows
                    wrapper.install()
            except (AttributeError, TypeError):  # not there, or its class allows no attributes
                self._unwrap()
            else:
                return

    def _unwrap(self) -> None:
        for wrapper in self._wrappers:
            wrapper.remove()
        self._wrappers = []

    def _after_attach(self, token: Any, context: Any = None) -> Any:
        span = trace.get_current_span(context)
        before = getattr(token, "old_value", None)
        if span is trace.get_current_span(
            seen_in_step(before) if isinstance(before, Context) else _EMPTY
        ):
            _native.context_attached(
                token
            )  # only something else in the context changed, baggage for instance
        else:
            _native.span_attached(span, token)
            remember_current(span)
        return token

    def _after_detach(self, result: Any, token: Any = None) -> Any:
        _native.span_detached(token)
        return result

    def _after_get_current(self, context: Any) -> Any:
        seen, ranges = (
            self._seen_without_ranges(context),
            self._ranges,
        )  # kept, because another thread may end showing
        return ranges.seen_from(seen) if ranges is not None else seen
