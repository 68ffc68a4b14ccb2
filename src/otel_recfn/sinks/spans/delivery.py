"""The delivery of finished spans to a provider's span processors, and the counts of what became of them there.

    spans = exported + failed + dropped.shutdown + those that wait in the processors' queues

Neither a span processor nor ``force_flush`` says whether an export succeeded, or that a provider flushes. So
methods of theirs are shadowed until the sink ends: ``export`` of each exporter, to count what it returns for our spans, and the
provider's own ``force_flush`` and ``shutdown``, which deliver what ended before them, as they do for live spans. An object that
can't be given attributes stays as it is; what an exporter was given that can't be shadowed counts as exported.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import (
    SpanTarget,
    exporters_of,
    queue_before,
    shortest_queue,
    takes_any_thread,
)
from otel_recfn.support.forks import ForkSafeLock, OwnThread, current_own_thread
from otel_recfn.support.signal_handlers import raised_by_signal_handler
from otel_recfn.support.texts import safe_exception

if TYPE_CHECKING:
    from otel_recfn.sinks.otlp.delivery import OtlpDelivery

_logger = logging.getLogger(__name__)

Delivery: TypeAlias = "SpanDelivery | OtlpDelivery"
"""A way for spans to leave. The sender's thread uses it, but for ``remove``, ``counters`` and ``has_failed``."""
MAX_CHUNK = 512
"""The spans at which a ``BatchSpanProcessor``'s own thread begins to export, while we make the next ones."""
FLUSH_TIMEOUT_S = 30.0
"""The seconds that processors without room for the next spans are waited for."""
SHUTDOWN_SECONDS = 5.0
"""The seconds that a ``shutdown()`` waits for what was recorded."""
LONGEST_MILLIS = 1e12
"""Some 30 years, the longest time that is waited."""
FLUSH_MILLIS = 30_000
"""The SDK's own default."""


class Shadow:
    """A stand-in for an object's method: ``instead`` is called with that method and the arguments.

    Raises:
        AttributeError, TypeError: the object can't be given attributes.
    """

    def __init__(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        self._owner, self._name, self._instead = owner, name, instead
        self._own = getattr(owner, name)
        self._before: Any = vars(owner).get(name) if hasattr(owner, "__dict__") else None
        """The attribute of that name in the object itself; None for none."""
        self._removed = False
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._removed:
            return self._own(*arguments, **keywords)
        return self._instead(self._own, *arguments, **keywords)

    def remove(self) -> None:
        """Remove the stand-in; if somebody has shadowed it since and still calls it, it passes calls on."""
        self._removed = True
        if vars(self._owner).get(self._name) is not self:
            return
        before = self._before
        while isinstance(before, Shadow) and before._removed:
            before = before._before
        if before is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, before)


class _Exporter:
    """An exporter that was found, and what it returned for our spans, which have one instrumentation scope object."""

    exporting = threading.local()
    """A flag per thread, ``now``, which is true in the middle of an export."""

    def __init__(self, exporter: Any, scope: object, queue: deque[ReadableSpan] | None) -> None:
        self.scope, self._queue = scope, queue
        self.exported = self.failed = 0
        self.has_failed = self._refuses = False
        self._lock = ForkSafeLock()
        self._in_any_thread = takes_any_thread(exporter)
        self._under_way: list[Future[Any]] = []
        """Exports of our spans alone."""
        self.shadow = Shadow(exporter, "export", self._export)

    def _export(
        self, export: Callable[..., Any], spans: Sequence[ReadableSpan], *args: Any, **kwargs: Any
    ) -> Any:
        theirs = self._theirs(spans)
        ours = len(spans) - len(theirs)
        if ours and self._refuses:
            theirs += self._theirs_in_queue()
            return export(theirs, *args, **kwargs) if theirs else SpanExportResult.FAILURE
        result: Any = SpanExportResult.FAILURE
        try:
            call = partial(self._marked, export, spans, *args, **kwargs)
            result = call() if theirs or not self._in_any_thread else self._leavable(call)
        finally:
            with self._lock:
                self.has_failed = result is SpanExportResult.FAILURE
                self.failed += ours if self.has_failed else 0
                self.exported += 0 if self.has_failed else ours
        return result

    def _theirs(self, spans: Iterable[ReadableSpan]) -> list[ReadableSpan]:
        return [
            span for span in spans if getattr(span, "instrumentation_scope", None) is not self.scope
        ]

    def _theirs_in_queue(self) -> list[ReadableSpan]:
        """The program's spans out of the processor's queue, which would go a few with each batch of ours, and so take longer.

        The processor has no other export under way, as it asks for this one.
        """
        queue = self._queue if self._queue is not None else deque()
        return self._theirs(queue.pop() for _ in range(len(queue)))

    def _marked(self, export: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.exporting.now = True
        try:
            return export(*args, **kwargs)
        finally:
            self.exporting.now = False

    def _leavable(self, export: Callable[[], Any]) -> Any:
        """Export in a thread of its own, if it can be had: ``refuse`` leaves it."""
        result: Future[Any] = Future()
        context = copy_context()

        def run() -> None:
            with suppress(InvalidStateError):  # it was left
                try:
                    result.set_result(context.run(export))
                except BaseException as error:
                    result.set_exception(error)

        self._under_way.append(result)
        try:
            OwnThread(run, f"otel-recfn exports for {threading.current_thread().name}").start()
        except RuntimeError:
            run()
        try:
            return result.result()
        finally:
            self._under_way.remove(result)

    def refuse(self) -> None:
        """Export no span of ours any more, and wait for no export of them: callers get a failure."""
        self._refuses = True
        for result in list(self._under_way):
            with suppress(InvalidStateError):  # it is back
                result.set_result(SpanExportResult.FAILURE)


def is_exporting() -> bool:
    """Whether the calling thread is in the middle of an export, for which it must not wait."""
    return getattr(_Exporter.exporting, "now", False)


class SpanDelivery:
    """A delivery to the processors of one target at a time, in chunks that their queues have room for."""

    provider: TracerProvider | None = None
    """The provider of the spans if the program has none; None for no spans then."""

    def __init__(self) -> None:
        self._used: list[Any] = []
        """The target, its processors and their exporters, as they were last."""
        self._target: Any = None
        self._exporters: list[_Exporter] = []
        self._returned_before = (0, 0)
        """The counts of exporters that aren't used any more."""
        self._spans = self._unwatched = self._since_flush = 0
        """Counts of spans: all, those for exporters that can't be shadowed, and those since the last flush."""
        self._room = self.chunk_size = 1
        """The room in the queues, and the number of spans that are handed on at once."""
        self._ended = self._logged = False

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """A mapper that makes spans of the SDK."""
        return SpanMapper(target)

    def use(self, target: SpanTarget) -> None:
        """Find the processors, and their exporters: any may have been added or replaced since the last time."""
        processors = target.processors()
        exporters = exporters_of(processors)
        if self._used == [target, *processors, *exporters]:
            return
        self._unwatch()
        self._used, self._target = [target, *processors, *exporters], target
        for exporter in exporters:
            with suppress(AttributeError, TypeError):  # slots, or a frozen class
                self._exporters.append(
                    _Exporter(exporter, target.scope, queue_before(exporter, processors))
                )
        queue = shortest_queue(processors)
        self.chunk_size, self._room = max(1, min(MAX_CHUNK, queue // 4)), max(1, queue // 2)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Hand a chunk on. If the queues may have no room for it, the processors flush before."""
        self._spans += len(spans)
        if self._since_flush and self._since_flush + len(spans) > self._room:
            self.flush(FLUSH_TIMEOUT_S)
            self._since_flush = 0
        if self._ended:
            return
        self._since_flush += len(spans)
        self._unwatched += 0 if self._exporters else len(spans)
        for span in spans:
            try:
                self._target.end(span)
            except (Exception, SystemExit) as error:
                if not self._logged:
                    self._logged = True
                    _logger.error(
                        "otel-recfn: a span processor raised in on_end",
                        exc_info=safe_exception(error),
                    )

    def flush(self, timeout_s: float) -> bool:
        """Have the processors export."""
        self._since_flush = 0
        return not self._used or bool(self._target.force_flush(timeout_s))

    @property
    def has_failed(self) -> bool:
        """Whether an exporter's last export failed; False before the first one."""
        return any(one.has_failed for one in self._exporters)

    def remove(self, process_ends: bool) -> None:
        """Leave every exporter as it was found.

        A provider goes on with what waits in its processors' queues, ten seconds for each batch where the backend is down. So
        exporters get none of our spans any more where the process ends.
        """
        self._ended = True
        if not process_ends:
            self._unwatch()
            return
        for one in self._exporters:
            one.refuse()

    def _unwatch(self) -> None:
        self._returned_before = self._returned()
        exporters, self._exporters, self._used = self._exporters, [], []
        for one in exporters:
            one.shadow.remove()

    def _returned(self) -> tuple[int, int]:
        """The numbers of spans that were exported and that failed; of several exporters, the one that took fewest counts."""
        (exported, failed), exporters = self._returned_before, self._exporters
        if not exporters:
            return exported, failed
        return exported + min([one.exported for one in exporters]), failed + max(
            [one.failed for one in exporters]
        )

    def counters(self) -> Mapping[str, int]:
        """The counts of spans; after the end none wait."""
        exported, failed = self._returned()
        exported = min(exported, self._spans - self._unwatched)
        failed = min(failed, self._spans - self._unwatched - exported)
        exported += self._unwatched
        left = self._spans - exported - failed if self._ended else 0
        return {"exported": exported, "failed": failed, "dropped.shutdown": left}

    def after_fork_in_child(self) -> SpanDelivery:
        """A new delivery; the inherited exporters are left as they were found."""
        self._unwatch()
        return SpanDelivery()


class ProviderCalls:
    """A provider's own ``force_flush()`` and ``shutdown()``, shadowed to deliver what ended before them. From any thread."""

    def __init__(self, flush: Callable[[float], bool]) -> None:
        self._flush = flush
        self._lock = ForkSafeLock()
        self._provider: Any = None
        self._shadows: list[Shadow] = []
        self.provider_ends = False
        """Whether it is or was shut down: what comes later is lost."""

    def watch(self, provider: Any) -> None:
        """Shadow the methods of this provider alone, from now on."""
        with self._lock:
            if provider is self._provider:
                return
            self.remove()
            self._provider, self.provider_ends = provider, False
            with suppress(AttributeError, TypeError):  # an object with slots, say
                self._shadows.append(Shadow(provider, "force_flush", self._force_flush))
                self._shadows.append(Shadow(provider, "shutdown", self._shutdown))

    def remove(self) -> None:
        """Leave the provider as it was found."""
        with self._lock:
            for shadow in self._shadows:
                shadow.remove()
            self._provider, self._shadows = None, []

    def _force_flush(
        self, own: Callable[..., Any], timeout_millis: float = FLUSH_MILLIS, *rest: Any, **more: Any
    ) -> Any:
        """Flush ours and the provider's; False if the time, which both share, was not enough for ours."""
        began = time.monotonic()
        flushed = self._flushed(max(0.0, min(timeout_millis, LONGEST_MILLIS) / 1000))
        took = int(1000 * (time.monotonic() - began))
        answer = own(max(0, timeout_millis - took), *rest, **more)
        return answer if flushed else False

    def _shutdown(self, own: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        self.provider_ends = True
        self._flushed(SHUTDOWN_SECONDS)
        return own(*arguments, **keywords)

    def _flushed(self, timeout_s: float) -> bool:
        if current_own_thread() is not None:  # the sender's thread, for which others would wait
            return True
        try:
            return self._flush(timeout_s)
        except Exception as error:  # this is the program's call
            if raised_by_signal_handler(error):
                raise
            return False
