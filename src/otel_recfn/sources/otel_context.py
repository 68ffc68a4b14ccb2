"""What is current in OpenTelemetry: read for the recorder, and watched so that it is read again only when it may have changed.

``attach`` and ``detach`` are the only setters of the current span. They are intercepted on the runtime context object, where
every caller passes, whichever way it imported the functions. That object has a private name; where it isn't there, or can't be
changed, the public functions are wrapped instead, and callers who imported them before keep the unwatched ones.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_recfn.model import trace_states
from otel_recfn.model.events import ContextFlag
from otel_recfn.model.fork_safe_lock import ForkSafeLock
from otel_recfn.ranges.async_range import enclosing_event_id
from otel_recfn.recording.protocol import ContextReading, Recorder

log = logging.getLogger("otel_recfn")

WATCHED = ("attach", "detach")
SUPPRESSION_KEYS = tuple(
    key for key in (getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None), "suppress_instrumentation") if key
)
"""The two that ``opentelemetry.instrumentation.utils.is_instrumentation_enabled`` asks for."""


class ContextWatcher:
    """Reads the current context, and tells the recorder when a thread's has changed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = ForkSafeLock()
        self._patches: list[_Patch] = []
        self._read_failed = False

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
            if not self._read_failed:
                self._read_failed = True
                log.exception("the current OpenTelemetry context cannot be read; ranges here have no parent span")
            return None

    def _read(self) -> ContextReading | None:
        context = otel_context.get_current()
        span = trace.get_current_span(context).get_span_context()
        enclosing = enclosing_event_id(context)
        flags = ContextFlag.NONE
        if any(context.get(key) for key in SUPPRESSION_KEYS):
            flags |= ContextFlag.SUPPRESSED
        if not span.is_valid:
            return ContextReading(0, 0, int(flags), enclosing) if flags or enclosing else None
        if span.trace_flags.sampled:
            flags |= ContextFlag.SAMPLED
        if span.trace_state:
            trace_states.note(span.trace_id, span.span_id, span.trace_state)
        return ContextReading(span.trace_id, span.span_id, int(flags), enclosing)

    def _patch(self) -> None:
        for target in (getattr(otel_context, "_RUNTIME_CONTEXT", None), otel_context):
            missing = set(WATCHED) - {patch.name for patch in self._patches}
            try:
                for name in sorted(missing):
                    self._patches.append(_Patch(target, name, self._changed))
            except (AttributeError, TypeError):  # not there, or its class allows no attributes
                continue
            return

    def _changed(self) -> None:
        try:
            self._recorder.context_changed()
        except Exception:  # the host's attach must go on; the next one tries again
            log.debug("context_changed failed", exc_info=True)


class _Patch:
    """One function of ``target`` that tells, after each call, that the context may have changed."""

    def __init__(self, target: Any, name: str, changed: Callable[[], None]) -> None:
        self.target, self.name, self.active = target, name, True
        self._had_own = name in vars(target)
        self._original: Callable[..., Any] = getattr(target, name)
        self._called = False
        self._wrapper = self._wrap(self._original, changed)
        setattr(target, name, self._wrapper)

    def _wrap(self, original: Callable[..., Any], changed: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            try:
                return original(*args, **kwargs)
            finally:
                if self.active:
                    changed()

        return watched

    def remove(self) -> bool:
        """Whether it is gone; if not, because somebody wrapped after us, it only passes on from now."""
        self.active = False
        if vars(self.target).get(self.name) is not self._wrapper:
            return False
        if self._had_own:
            setattr(self.target, self.name, self._original)
        else:
            vars(self.target).pop(self.name, None)  # a signal handler may have been faster
        return True

    def revive(self) -> bool:
        """Tell again, if calls still come by here; they don't where whoever wrapped after us took us out as well."""
        self._called = False
        otel_context.detach(otel_context.attach(otel_context.get_current()))
        self.active = self._called
        return self.active
