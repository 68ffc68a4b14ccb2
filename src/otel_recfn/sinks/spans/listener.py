"""A span processor of ours at the program's provider, by which we hear of the program's spans.

    the program calls            our processor hears                     the program's processors
    tracer.start_span(...)  ──►  files show the span from here on    ──►
    span.end()              ──►  and until here                      ──► export it

It has to come before the program's processors, for what ``processor.py`` adds. The SDK has
no public way for that: it is put first in the tuple of the SDK's multi processor, under the lock of
that. Nothing else of the program's is changed, and ``remove`` takes it out again.

    SynchronousMultiSpanProcessor   as above
    ConcurrentMultiSpanProcessor    calls all at once, in threads of its own, so that files can't
                                    tell in which thread a span began
    another, without the tuple      ours is added by ``add_span_processor``, so it comes last. It
                                    can't be taken out: after ``remove`` it does nothing
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, ReadableSpan, SpanProcessor

from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.locks import acquired
from otel_recfn.support.logs import log
from otel_recfn.support.safe_texts import safe_exception
from otel_recfn.support.span_log import is_ours, span_log

LOCK_SECONDS = 1.0
"""The seconds that the SDK's lock is waited for, which a forked child may have inherited locked."""


class SpanListener(SpanProcessor):
    """Hears of the spans of one provider at a time, for files. It never raises."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._provider: Any = None
        self._multi: Any = None
        """The SDK's multi processor at which it is registered."""
        self._is_in_use = False
        self._is_called_in_place = False
        """Whether the SDK calls it in the program's thread."""
        self._programs_scope: Any = None
        """The instrumentation scope of the program's span that ended last."""

    def on_start(self, span: Any, parent_context: object = None) -> None:
        """Log that a span begins, if files show it. Takes no lock."""
        if not (self._is_in_use and span_log.is_wanted):
            return
        try:
            if self._is_called_in_place and not is_ours(span):
                span_log.began(span)
        except BaseException as error:  # an object of the program's that is no span of the SDK's
            if raised_by_signal_handler(error):
                raise

    def on_end(self, span: ReadableSpan) -> None:
        """Log that a span has ended, if files show it. Takes no lock."""
        if not self._is_in_use:
            return
        try:
            if self._is_programs(span):
                self._log_end(span)
        except BaseException as error:  # as in on_start
            if raised_by_signal_handler(error):
                raise

    def _is_programs(self, span: ReadableSpan) -> bool:
        """Whether a span is none of ours."""
        scope = span.instrumentation_scope
        # Asking whether it is ours costs more than all else here.
        if scope is not self._programs_scope:
            if is_ours(span):
                return False
            self._programs_scope = scope
        return True

    def _log_end(self, span: ReadableSpan) -> None:
        if span_log.is_wanted and self._is_called_in_place:
            span_log.ended(span)

    def register(self, provider: Any, multi: Any) -> bool:
        """Hear of this provider alone, from now on; its tracers call ``multi``.

        False if it did already. From any thread.
        """
        with self._lock:
            if provider is self._provider:
                return False
            self.remove()
            self._provider, self._multi, self._is_in_use = provider, multi, True
            self._is_called_in_place = not isinstance(multi, ConcurrentMultiSpanProcessor)
            self._put_first()
            return True

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


def _locked(multi: Any) -> AbstractContextManager[bool]:
    """The SDK's lock for its tuple.

    Gives False if it can't be had, as where a child inherited it locked.
    """
    return acquired(multi._lock, LOCK_SECONDS)


def can_be_removed(multi: Any) -> bool:
    """Whether a listener can be taken out again, and is called in the program's threads."""
    has_tuple = isinstance(getattr(multi, "_span_processors", None), tuple)
    return has_tuple and not isinstance(multi, ConcurrentMultiSpanProcessor)


def without_ours(multi: Any) -> list[Any]:
    """The processors behind ours, in order; the multi processor itself if it doesn't name them."""
    found = getattr(multi, "_span_processors", None)
    return (
        [multi] if found is None else [each for each in found if not isinstance(each, SpanListener)]
    )


def flattened(processor: Any) -> list[Any]:
    """The processors within one, but for ours."""
    inner = getattr(processor, "_span_processors", None)
    if inner is None:
        return [] if isinstance(processor, SpanListener) else [processor]
    return [found for each in inner for found in flattened(each)]
