"""Traces of our own that the program has to know while their ranges are open: a span that it opens inside belongs to them.

    program's thread   trace_of(root) ──┐
                                        ├──► who comes first decides, for both
    sink's thread      decide(root)   ──┘    publish(root, context)

A sink decides on a trace when it sees its outermost range begin, a drain later. Until then the program's thread may decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice

from opentelemetry.trace import SpanContext

from otel_recfn.sinks.spans.provider import RootStart
from otel_recfn.support.fork_safe_lock import ForkSafeLock

MAX_REMEMBERED = 1 << 15


class PromisedTraces:
    """Decides on the traces of the newest ``MAX_REMEMBERED`` outermost ranges. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._contexts: dict[int, SpanContext | None] = {}
        """The root span of each outermost range; None where there is none, or the sink is about to decide."""
        self._promised: dict[int, RootStart | None] = {}
        """What the program decided, and the sink was not told yet."""
        self._deciding = threading.local()

    def trace_of(self, root: int, start: Callable[[], RootStart | None]) -> SpanContext | None:
        """The root span above an outermost range, started by ``start`` if nobody decided yet; None where there is none.

        A sampler that asks for the current span comes by here again, from inside ``start``: for it there is none yet.
        """
        with self._lock:
            if root in self._contexts:
                return self._contexts[root]
        if getattr(self._deciding, "now", False):
            return None
        self._deciding.now = True
        try:
            started = start()
        finally:
            self._deciding.now = False
        with self._lock:
            if root not in self._contexts:
                self._remember(root, started.context if started is not None else None)
                self._promised[root] = started
            return self._contexts[root]

    def decide(self, root: int) -> tuple[bool, RootStart | None]:
        """Whether it was decided, and how; from here on nobody else decides. It is asked again if nothing is published."""
        with self._lock:
            if root in self._promised:
                return True, self._promised[root]
            self._remember(root, None)
            return False, None

    def publish(self, root: int, context: SpanContext | None) -> None:
        """The sink has decided on the trace of this range: from now on the program gets its root span too."""
        with self._lock:
            self._remember(root, context)
            self._promised.pop(root, None)

    def _remember(self, root: int, context: SpanContext | None) -> None:
        self._contexts[root] = context
        for oldest in list(islice(self._contexts, max(0, len(self._contexts) - MAX_REMEMBERED))):
            del self._contexts[oldest]
            self._promised.pop(oldest, None)
