"""What is current in OpenTelemetry: read for the recorder, watched so that it knows what began when, and shown with our ranges.

``attach`` and ``detach`` are the only setters of the current span, ``get_current`` its only reader. They are intercepted on the
runtime context object, where every caller passes, whichever way it imported the functions. That object has a private name;
where it isn't there, or can't be changed, the public functions are wrapped instead, and callers who imported them before keep
the unwatched ones.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_recfn.model.events import ContextFlag
from otel_recfn.recording.protocol import ContextReading, Recorder, TaskRange
from otel_recfn.sources.range_spans import RangeSpans, range_of
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.interrupts import raised_by_signal_handler

log = logging.getLogger("otel_recfn")
After: TypeAlias = Callable[..., Any]
"""Takes what a function returned and its arguments; gives what the caller gets."""

WATCHED = ("attach", "detach", "get_current")
SUPPRESSION_KEYS = tuple(
    key for key in (getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None), "suppress_instrumentation") if key
)
"""The two that ``opentelemetry.instrumentation.utils.is_instrumentation_enabled`` asks for."""


_EMPTY = Context()


class ContextWatcher:
    """Reads the current context, and tells the recorder when a thread's has changed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = ForkSafeLock()
        self._patches: list[_Patch] = []
        self._shown: RangeSpans | None = None
        self._failed = False

    def install(self) -> None:
        """Intercept attach and detach, and become the recorder's context reader. A second call does nothing."""
        with self._lock.held:
            self._patches = [patch for patch in self._patches if patch.revive()]
            if len(self._patches) < len(WATCHED):
                self._patch()
        self._recorder.set_context_reader(self.read)

    def remove(self) -> None:
        """Take it all back; where somebody wrapped after us, what stays in the chain passes everything on and does nothing."""
        self._recorder.set_context_reader(None)
        with self._lock.held:
            self._patches = [patch for patch in self._patches if not patch.remove()]

    def show_ranges(self, shown: RangeSpans | None) -> None:
        """From here on the program sees its ranges as current spans; None: no more."""
        self._shown = shown

    def status(self) -> str:
        """How changes are noticed, in words."""
        active = [patch for patch in self._patches if patch.active]
        if not active:
            return "not watching"
        if active[0].target is otel_context:
            return "watching opentelemetry.context.attach and detach (the runtime context object could not be changed)"
        return f"watching attach and detach of {type(active[0].target).__name__}"

    def read(self) -> ContextReading | None:
        """What is current in the calling thread or task; None where nothing is. Never raises."""
        try:
            return self._read()
        except Exception:
            self._tell_once("the current OpenTelemetry context cannot be read; ranges here have no parent span")
            return None

    def _read(self) -> ContextReading | None:
        context = self._attached_context()
        current = trace.get_current_span(context)
        span = current.get_span_context()
        flags = ContextFlag.NONE
        if any(context.get(key) for key in SUPPRESSION_KEYS):
            flags |= ContextFlag.SUPPRESSED
        range_ = range_of(current)
        if range_ is not None and range_.is_current:
            return _reading_of_range(range_, current, flags)
        if not span.is_valid:
            return ContextReading(0, 0, int(flags), span=current) if flags else None
        if span.trace_flags.sampled:
            flags |= ContextFlag.SAMPLED
        kept = self._recorder.keep_trace_state(span.trace_state.to_header()) if span.trace_state else 0
        return ContextReading(span.trace_id, span.span_id, int(flags) | kept, span=current)

    def _attached_context(self) -> Context:
        """What is attached, without our ranges."""
        for patch in self._patches:
            if patch.name == "get_current" and patch.active:
                context: Context = patch.original()
                return context
        return otel_context.get_current()

    def _patch(self) -> None:
        after: dict[str, After] = {"attach": self._attached, "detach": self._detached, "get_current": self._asked}
        for target in (getattr(otel_context, "_RUNTIME_CONTEXT", None), otel_context):
            missing = set(WATCHED) - {patch.name for patch in self._patches}
            try:
                for name in sorted(missing):
                    self._patches.append(_Patch(target, name, after[name]))
            except (AttributeError, TypeError):  # not there, or its class allows no attributes
                continue
            return

    def _attached(self, token: Any, context: Any = None) -> Any:
        span = trace.get_current_span(context)
        before = getattr(token, "old_value", None)
        if span is trace.get_current_span(before if isinstance(before, Context) else _EMPTY):
            self._recorder.context_attached(token)
        else:
            self._recorder.span_attached(span, token)
        return token

    def _detached(self, result: Any, token: Any = None) -> Any:
        self._recorder.span_detached(token)
        return result

    def _asked(self, context: Any) -> Any:
        return self._shown.seen_from(context) if self._shown is not None else context

    def _tell_once(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            log.exception(message)


def _reading_of_range(range_: TaskRange, span: object, flags: ContextFlag) -> ContextReading:
    high, low, span_id, own_flags = range_.context_words
    return ContextReading(high << 64 | low, span_id, own_flags | flags, range_.event_id, range_.root, span)


class _Patch:
    """One function of ``target``; what it returned passes through ``after``, which must not raise into the program."""

    def __init__(self, target: Any, name: str, after: After) -> None:
        self.target, self.name, self.active = target, name, True
        self._had_own = name in vars(target)
        self.original: Callable[..., Any] = getattr(target, name)
        self._called = False
        self._wrapper = self._wrap(self.original, after)
        setattr(target, name, self._wrapper)

    def _wrap(self, original: Callable[..., Any], after: After) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            result = original(*args, **kwargs)
            if not self.active:
                return result
            try:
                return after(result, *args, **kwargs)
            except Exception as error:  # the program's call goes on; what a signal handler raised is the program's own
                if raised_by_signal_handler(error):
                    raise
                log.debug("watching %s failed", self.name, exc_info=True)
                return result

        return watched

    def remove(self) -> bool:
        """Whether it is gone; if not, because somebody wrapped after us, it only passes on from now."""
        self.active = False
        if vars(self.target).get(self.name) is not self._wrapper:
            return False
        if self._had_own:
            setattr(self.target, self.name, self.original)
        else:
            vars(self.target).pop(self.name, None)  # a signal handler may have been faster
        return True

    def revive(self) -> bool:
        """Tell again, if calls still come by here; they don't where whoever wrapped after us took us out as well."""
        self._called = False
        otel_context.detach(otel_context.attach(otel_context.get_current()))  # all three
        self.active = self._called
        return self.active
