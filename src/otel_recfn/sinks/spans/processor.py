"""The span processor of ours at the program's provider, by which we hear what its SDK does.

    the program calls            our processor hears                     the program's processors
    tracer.start_span(...)  ──►  files show the span from here on    ──►
    span.end()              ──►  the span above our ranges has ended ──►
    provider.force_flush()  ──►  what ended before is handed on      ──► export it
    provider.shutdown()     ──►  the same                            ──► export it, and end

A provider calls its processors in the order of registration, and one that was shut down takes no
more spans. So ours has to come before the program's, which the SDK has no public way for: it is put
first in the tuple of the SDK's multi processor, under the lock of that. Nothing else of the
program's is changed, and ``remove`` takes it out again.

    SynchronousMultiSpanProcessor   as above
    ConcurrentMultiSpanProcessor    calls all at once. A flush delivers, as ours flushes the others
                                    itself. A shutdown may end them before they get what ended
                                    before it
    another, without the tuple      ours is added by ``add_span_processor``, so it comes last, with
                                    the same result. It can't be taken out: after ``remove`` it does
                                    nothing
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_recfn.support.forks import ForkSafeLock, OwnThread, current_own_thread
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.locks import acquired
from otel_recfn.support.logs import log
from otel_recfn.support.safe_texts import safe_exception
from otel_recfn.support.span_log import is_ours, span_log

FLUSH_SECONDS = 30.0
"""The SDK's own default for ``force_flush``."""
SHUTDOWN_SECONDS = 5.0
"""The seconds that a ``shutdown()`` waits for what was recorded."""
LONGEST_SECONDS = 1e9
"""Some 30 years, the longest time that is waited."""
LOCK_SECONDS = 1.0
"""The seconds that the SDK's lock is waited for, which a forked child may have inherited locked."""
LEAVE_SECONDS = 0.1
"""The seconds in which a shutdown in a thread of ours has begun."""
UNKNOWN: Any = object()
"""A stand-in for the newest span where spans may have ended before we came."""


class OwnSpanProcessor(SpanProcessor):
    """The processor of one sink, registered at one provider at a time. It never raises.

    ``ended`` is called with each span of the program that ends, in the program's thread. ``flush``
    delivers within seconds what was recorded.
    """

    def __init__(
        self, ended: Callable[[ReadableSpan], object], flush: Callable[[float], bool]
    ) -> None:
        self._ended, self._flush = ended, flush
        self._lock = ForkSafeLock()
        self._provider: Any = None
        self._multi: Any = None
        """The SDK's multi processor at which it is registered."""
        self._is_in_use = False
        self._is_called_in_place = False
        """Whether the SDK calls it in the program's thread."""
        self.newest: Any = UNKNOWN
        """The program's span that ended last; None if none is known to have ended."""
        self._programs_scope: Any = None
        """Its instrumentation scope."""
        self.provider_ends = False
        """Whether the provider is or was shut down."""
        self.provider_has_ended = False
        """Whether it was, after what ended before was delivered: what comes later is lost."""
        self._processors_to_end: Sequence[Any] = ()
        self._may_end = threading.Event()
        self._ender: OwnThread | None = None
        """The thread that ends processors for which the end of the process doesn't wait."""

    # --- what the SDK calls

    def on_start(self, span: Any, parent_context: object = None) -> None:
        """Log that a span begins, if files show it. Takes no lock."""
        if not (self._is_in_use and span_log.is_wanted):
            return
        try:
            if self._is_called_in_place and not is_ours(span):
                span_log.began(span)
        except BaseException as error:  # as in on_end
            if raised_by_signal_handler(error):
                raise

    def on_end(self, span: ReadableSpan) -> None:
        """Note that a span has ended. Takes no lock."""
        if not self._is_in_use:
            # They have one of the program's, which ended in an exit handler.
            self._processors_to_end = ()
            return
        try:
            scope = span.instrumentation_scope
            # Asking whether it is ours costs more than all else here.
            if scope is self._programs_scope or not is_ours(span):
                self._programs_scope, self.newest = scope, span
                if span_log.is_wanted and self._is_called_in_place:
                    span_log.ended(span)
            self._ended(span)
        except BaseException as error:  # an object of the program's that is no span of the SDK's
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

    def register(self, provider: Any, multi: Any) -> None:
        """Hear of this provider alone, from now on; its tracers call ``multi``. From any thread."""
        with self._lock:
            if provider is self._provider:
                return
            self.remove()
            self._provider, self._multi, self._is_in_use = provider, multi, True
            self._is_called_in_place = not isinstance(multi, ConcurrentMultiSpanProcessor)
            self.provider_ends = self.provider_has_ended = False
            self.newest = UNKNOWN if _may_have_spans(self._multi) else None
            self._put_first()

    def _put_first(self) -> None:
        try:
            if isinstance(getattr(self._multi, "_span_processors", None), tuple):
                with _locked(self._multi) as is_locked:
                    if is_locked:
                        self._multi._span_processors = (self, *self._multi._span_processors)
            else:
                self._provider.add_span_processor(self)
        except BaseException as error:  # spans go all the same; flush() and the end deliver them
            if raised_by_signal_handler(error):
                raise
            log.debug("the provider takes no span processor", exc_info=safe_exception(error))

    def remove(self) -> None:
        """Leave the provider as it was found, but for processors that were added since.

        From any thread.
        """
        with self._lock:
            self._is_in_use = False
            multi, self._multi, self._provider = self._multi, None, None
            before = getattr(multi, "_span_processors", None)
            if isinstance(before, tuple) and any(each is self for each in before):
                with _locked(multi) as is_locked:
                    if is_locked:
                        others = tuple(each for each in multi._span_processors if each is not self)
                        multi._span_processors = others

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
        span_log.clear()


def _locked(multi: Any) -> AbstractContextManager[bool]:
    """The SDK's lock for its tuple.

    Gives False if it can't be had, as where a child inherited it locked.
    """
    return acquired(multi._lock, LOCK_SECONDS)


def without_ours(multi: Any) -> list[Any]:
    """The processors behind ours, in order; the multi processor itself if it doesn't name them."""
    found = getattr(multi, "_span_processors", None)
    return (
        [multi]
        if found is None
        else [each for each in found if not isinstance(each, OwnSpanProcessor)]
    )


def flattened(processor: Any) -> list[Any]:
    """The processors within one, but for ours."""
    inner = getattr(processor, "_span_processors", None)
    if inner is None:
        return [] if isinstance(processor, OwnSpanProcessor) else [processor]
    return [found for each in inner for found in flattened(each)]


def _batch_processors(multi: Any) -> list[BatchSpanProcessor]:
    return [each for each in flattened(multi) if isinstance(each, BatchSpanProcessor)]


def _may_have_spans(multi: Any) -> bool:
    """Whether batch processors may have spans that they haven't exported."""
    for processor in _batch_processors(multi):
        batch = getattr(processor, "_batch_processor", None)
        queue, lock = getattr(batch, "_queue", None), getattr(batch, "_export_lock", None)
        if queue is None or lock is None or len(queue) or lock.locked():
            return True
    return False
