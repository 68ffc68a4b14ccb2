"""The delivery of finished spans to a provider's span processors.

    spans = exported + dropped.shutdown + those that wait here

They are handed over one by one, in the sender's thread, as the SDK hands over the program's. What a
processor does with them it doesn't say, so those that were handed over count as exported.

A ``BatchSpanProcessor`` drops its oldest spans where 2,048 wait, the program's among them. And at
the end of the process its provider waits for every batch of 512, each of which takes ten seconds
where the backend is down. So after 512 spans of ours the processors flush before they get more, in
the sender's thread; after 256 until a flush was quick, so that the program's have room in the same
batch. Where the backend takes nothing, one batch of ours is there, and the others wait in our own
queue. Where the process ends meanwhile, and processors have nothing of the program's, the provider
doesn't wait for that batch either (``OwnSpanProcessor.leave_processors``).

No processor says that an export failed, but exporters try for seconds until one has. So the end of
the process doesn't wait for spans of ours alone after a flush of that length (``has_failed``).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.processor import OwnSpanProcessor
from otel_recfn.sinks.spans.span_target import SpanTarget, shortest_queue
from otel_recfn.support.logs import GuardedLog
from otel_recfn.support.safe_texts import safe_exception

if TYPE_CHECKING:
    from otel_recfn.sinks.otlp.delivery import OtlpDelivery

_logger = GuardedLog(logging.getLogger(__name__), {})

Delivery: TypeAlias = "SpanDelivery | OtlpDelivery"
"""A way for spans to leave.

The sender's thread uses it, but for ``remove``, ``counters`` and ``has_failed``.
"""
MAX_CHUNK = 256
MAX_ROOM = 512
"""The most spans of ours that processors have: those of one batch."""
QUICK_FLUSH_S = 1.0
"""The seconds in which a backend that works takes a batch."""
SLOW_FLUSH_S = 5.0
"""The seconds that a flush takes at least where the backend is down or hangs: OpenTelemetry's
exporters try for 5.6 to 10.
"""
FLUSH_TIMEOUT_S = 30.0
"""The seconds that processors without room for the next spans are waited for."""


class SpanDelivery:
    """A delivery to the processors of one target at a time, in chunks that their queues have room
    for.

    ``own`` is our processor at the target's provider.
    """

    provider: TracerProvider | None = None
    """The provider of the spans if the program has none; None for no spans then."""
    needs_processors = True
    """Whether spans go through a provider's span processors."""

    def __init__(self, own: OwnSpanProcessor) -> None:
        self._own = own
        self._target: SpanTarget | None = None
        self._processors: Sequence[Any] = ()
        """The target's processors, as they were last."""
        self._spans = self._exported = self._since_flush = self._dropped = 0
        """Counts of spans: all, those that were handed over, of these those since the last flush,
        and those that came when the provider had ended.
        """
        self._room = self.chunk_size = 1
        """The room in the queues, and the number of spans that are handed over at once."""
        self._last_flush_s = QUICK_FLUSH_S
        """The seconds that the last flush took; before one has ended, neither quick nor slow."""
        self._flush_began = math.inf
        """The ``time.monotonic()`` at which the flush under way began; infinite while none is."""
        self._newest: Any = None
        """The program's newest span when spans were last handed over."""
        self._flushed: Any = None
        """The one of them that is exported: if it is the newest, processors have none of the
        program's.
        """
        self._is_in_processor = self._ended = self._logged = False

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """A mapper that makes spans of the SDK."""
        return SpanMapper(target)

    def use(self, target: SpanTarget) -> None:
        """Find the processors: any may have been added or replaced since the last time."""
        processors = target.processors()
        if target is self._target and processors == self._processors:
            return
        self._target, self._processors = target, processors
        queue = shortest_queue(processors)
        self.chunk_size = max(1, min(MAX_CHUNK, queue // 4))
        self._room = max(1, min(MAX_ROOM, queue // 2))
        self._own.prepare_for_exit()

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Hand a chunk over. If there may be no room for it, the processors flush before."""
        self._spans += len(spans)
        room = self._room if self._last_flush_s < QUICK_FLUSH_S else self._room // 2
        if self._since_flush and self._since_flush + len(spans) > room:
            self.flush(FLUSH_TIMEOUT_S)
            self._since_flush = 0
        self._newest, self._is_in_processor = self._own.newest, True
        for number, span in enumerate(spans):
            if self._ended or self._own.provider_has_ended:
                self._dropped += len(spans) - number
                break
            self._since_flush += 1
            self._exported += 1
            self._send(span)
        self._is_in_processor = False

    def _send(self, span: ReadableSpan) -> None:
        for processor in self._processors:
            try:
                processor.on_end(span)
            # This is a thread of ours, in which no signal handler runs.
            except BaseException as error:
                if not self._logged:
                    self._logged = True
                    _logger.error(
                        "otel-recfn: a span processor raised in on_end",
                        exc_info=safe_exception(error),
                    )

    def flush(self, timeout_s: float) -> bool:
        """Have the processors export."""
        if self._target is None:
            return True
        newest = self._newest
        began = time.monotonic()
        self._is_in_processor, self._flush_began = True, began
        try:
            flushed = self._target.force_flush(timeout_s)
        finally:
            self._is_in_processor, self._flush_began = False, math.inf
        self._since_flush = 0
        self._last_flush_s = time.monotonic() - began
        if flushed:
            self._flushed = newest
        return flushed

    @property
    def has_failed(self) -> bool:
        """Whether waiting is known to be of no use: the last flush was slow, and the one under way,
        of ours alone, isn't quick either.

        For the program's spans the provider waits anyway. And the flush under way may be the first
        one after the backend is up again, so it gets the time to be quick.
        """
        return (
            self._has_ours_alone
            and self._last_flush_s >= SLOW_FLUSH_S
            and time.monotonic() - self._flush_began >= QUICK_FLUSH_S
        )

    @property
    def _has_ours_alone(self) -> bool:
        """Whether processors have spans of ours, and none of the program's."""
        has_ours = self._is_in_processor or self._since_flush > 0
        return has_ours and self._own.newest is self._flushed

    def remove(self, process_ends: bool) -> None:
        """Hand over nothing more.

        Where the process ends and a processor isn't back, or wasn't for long in the last flush, but
        has no span of the program's, the provider won't wait for it either.
        """
        self._ended = True
        target, not_flushed = self._target, self._since_flush
        is_slow = self._is_in_processor or self._last_flush_s >= SLOW_FLUSH_S
        if process_ends and is_slow and self._has_ours_alone and target is not None:
            self._exported -= (
                not_flushed
                if self._own.leave_processors(target.provider, target.multi_processor)
                else 0
            )
        self._own.end()

    def counters(self) -> Mapping[str, int]:
        """The counts of spans; after the end none wait."""
        dropped = self._spans - self._exported if self._ended else self._dropped
        return {"exported": self._exported, "failed": 0, "dropped.shutdown": dropped}

    def after_fork_in_child(self) -> SpanDelivery:
        """A new delivery: what was in the processors' queues belongs to the parent."""
        return SpanDelivery(self._own)
