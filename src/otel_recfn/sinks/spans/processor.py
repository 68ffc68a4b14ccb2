"""The span processor of a sink of spans: it hears what the program's SDK does, and delivers before
that exports.

    the program calls            our processor hears                     the program's processors
    span.end()              ──►  the span above our ranges has ended ──►
    provider.force_flush()  ──►  what ended before is handed on      ──► export it
    provider.shutdown()     ──►  the same                            ──► export it, and end

A provider calls its processors in the order of registration, and one that was shut down takes no
more spans. So ours has to come before the program's, which ``listener.py`` sees to. Where it can't:

    ConcurrentMultiSpanProcessor    calls all at once. A flush delivers, as ours flushes the others
                                    itself. A shutdown may end them before they get what ended
                                    before it
    another, without the tuple      ours comes last: a flush and a shutdown do as with the
                                    concurrent one
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_recfn.sinks.spans.listener import SpanListener, flattened
from otel_recfn.support.forks import OwnThread, current_own_thread
from otel_recfn.support.interruptions import raised_by_signal_handler

FLUSH_SECONDS = 30.0
"""The SDK's own default for ``force_flush``."""
SHUTDOWN_SECONDS = 5.0
"""The seconds that a ``shutdown()`` waits for what was recorded."""
LONGEST_SECONDS = 1e9
"""Some 30 years, the longest time that is waited."""
LEAVE_SECONDS = 0.1
"""The seconds in which a shutdown in a thread of ours has begun."""
UNKNOWN: Any = object()
"""A stand-in for the newest span where spans may have ended before we came."""


class OwnSpanProcessor(SpanListener):
    """The processor of one sink, registered at one provider at a time. It never raises.

    ``ended`` is called with each span of the program that ends, in the program's thread. ``flush``
    delivers within seconds what was recorded.
    """

    def __init__(
        self, ended: Callable[[ReadableSpan], object], flush: Callable[[float], bool]
    ) -> None:
        super().__init__()
        self._ended, self._flush = ended, flush
        self.newest: Any = UNKNOWN
        """The program's span that ended last; None if none is known to have ended."""
        self.provider_ends = False
        """Whether the provider is or was shut down."""
        self.provider_has_ended = False
        """Whether it was, after what ended before was delivered: what comes later is lost."""
        self._processors_to_end: Sequence[Any] = ()
        self._may_end = threading.Event()
        self._ender: OwnThread | None = None
        """The thread that ends processors for which the end of the process doesn't wait."""

    # --- what the SDK calls

    def on_end(self, span: ReadableSpan) -> None:
        """Note that a span has ended. Takes no lock."""
        if not self._is_in_use:
            # They have one of the program's, which ended in an exit handler.
            self._processors_to_end = ()
            return
        try:
            if self._is_programs(span):
                self.newest = span
                self._log_end(span)
            self._ended(span)
        except BaseException as error:  # as in on_start
            if raised_by_signal_handler(error):
                raise

    def force_flush(self, timeout_millis: float | None = None) -> bool:
        """Deliver what was recorded; False if the time was not enough."""
        seconds = FLUSH_SECONDS if timeout_millis is None else timeout_millis / 1000
        return self._delivered(max(0.0, min(seconds, LONGEST_SECONDS)))

    def shutdown(self) -> None:
        """Deliver what was recorded, before the processors behind are shut down."""
        if self._processors_to_end:
            # A BatchSpanProcessor ends but once, so the SDK's own calls, which come next, return at
            # once.
            self._may_end.set()
            if self._ender is not None:
                self._ender.wait_for_end(LEAVE_SECONDS)
            return
        self.provider_ends = True
        self._delivered(SHUTDOWN_SECONDS)
        self.provider_has_ended = True

    def _delivered(self, timeout_s: float) -> bool:
        # The sender's thread flushes the others, and would wait for itself here.
        if not self._is_in_use or current_own_thread() is not None:
            return True
        try:
            return self._flush(timeout_s)
        except Exception as error:  # this is the program's call
            if raised_by_signal_handler(error):
                raise
            return False

    # --- what the sink calls

    def register(self, provider: Any, multi: Any) -> bool:
        """Hear of this provider alone, from now on; its tracers call ``multi``.

        False if it did already. From any thread.
        """
        with self._lock:
            if provider is self._provider:
                return False
            # First, because a span may end as soon as it is registered.
            self.provider_ends = self.provider_has_ended = False
            self.newest = UNKNOWN if _may_have_spans(multi) else None
            return super().register(provider, multi)

    def prepare_for_exit(self) -> None:
        """Start the thread for ``leave_processors``, as CPython 3.12 starts none at its end."""
        if self._ender is None:
            self._may_end = threading.Event()
            self._ender = OwnThread(self._end_processors, "otel-recfn exit")
            with suppress(RuntimeError):  # no more threads here
                self._ender.start()

    def leave_processors(self, provider: Any, multi: Any) -> bool:
        """Let the end of the process not wait for the batch processors behind.

        False if there are none.

        For where they have spans of ours alone, and the time for these is over: when the provider
        is shut down, they are, too, but in a thread of ours. Processors of other classes than the
        SDK's may not take a second shutdown, so they are waited for.
        """
        if self._ender is None or not self._ender.is_alive():
            return False
        with self._lock:
            self._processors_to_end = _batch_processors(multi)
            self._provider, self._multi = provider, multi
            self._put_first()
        return bool(self._processors_to_end)

    def end(self) -> None:
        """End the thread, unless it has something to do when the provider is shut down."""
        if not self._processors_to_end:
            self._may_end.set()

    def _end_processors(self) -> None:
        self._may_end.wait()
        for processor in self._processors_to_end:
            processor.shutdown()

    def start_empty(self) -> None:
        """Go on in a forked child, where the processors' queues are empty and no thread of ours
        is.
        """
        self.newest, self._ender = None, None


def _batch_processors(multi: Any) -> list[BatchSpanProcessor]:
    return [each for each in flattened(multi) if isinstance(each, BatchSpanProcessor)]


def _may_have_spans(multi: Any) -> bool:
    """Whether batch processors may have spans that they haven't exported."""
    for processor in _batch_processors(multi):
        batch = getattr(processor, "_batch_processor", None)
        queue = getattr(batch, "_queue", None)
        lock = getattr(batch, "_export_lock", None)
        if queue is None or lock is None or len(queue) or lock.locked():
            return True
    return False
