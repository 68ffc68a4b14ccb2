"""The source of Python calls: switches the tracer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial

from otel_recfn.model.events import EventSource
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.sources.calls.protocol import CallTexts
from otel_recfn.sources.calls.tracer import CallTracer
from otel_recfn.sources.protocol import Wanted

log = logging.getLogger("otel_recfn")

_active: CallSource | None = None
"""The one that traces: there is one profile function in a thread."""


class CallSource:
    """A source: ranges of Python calls while it is enabled.

    Args:
        tracer: makes them.
        texts: what calls are called, of those that are asked for.
    """

    name = "python_calls"
    announces: EventSource | None = EventSource.PYTHON_CALL
    needs: str | None = None

    def __init__(self, tracer: CallTracer, texts: Callable[[PythonCalls], CallTexts]) -> None:
        self._tracer, self._texts = tracer, texts
        self._shown: PythonCalls | None = None
        """What it traces now."""
        self._told = False
        """Of another profiler, while it traces."""

    def prepare(self) -> bool:
        """See Source.prepare."""
        if getattr(sys, "_is_gil_enabled", bool)() or not hasattr(sys, "_is_gil_enabled"):
            return True
        log.warning("Python calls are not traced without the GIL: run this Python with PYTHON_GIL=1, or without python_calls")
        return False

    def enable(self, wanted: Wanted) -> None:
        """Trace what is wanted now, unless another session of the process traces."""
        global _active
        if _active not in (None, self):
            log.warning("Python calls are traced already by another session; this one doesn't see them")
        elif _active is None:
            _active, self._shown = self, wanted.calls
            self._start(self._texts(wanted.calls))
        elif wanted.calls != self._shown:
            self._shown = wanted.calls
            self._tracer.show(self._texts(wanted.calls))

    def _start(self, texts: CallTexts) -> None:
        self._told = False
        self._telling(partial(self._tracer.start, texts))

    def look(self, *, last: bool) -> None:
        """See Watcher.look."""
        if _active is self:
            self._telling(partial(self._tracer.look, last=last))

    def _telling(self, find: Callable[[], None]) -> None:
        before = self._tracer.threads_left_alone()
        find()
        if self._tracer.threads_left_alone() != before and not self._told:
            self._told = True
            log.warning("another profiler is or was active and is left alone: calls of its threads are not traced meanwhile")

    def disable(self) -> None:
        """Stop tracing, if it is this one that traces."""
        global _active
        if _active is self:
            self._telling(self._tracer.stop)
            _active = None
