"""Finished spans to a provider's span processors, in chunks that they don't drop, and what became of them.

    spans = spans_exported + spans_failed + spans_pending + spans_handed

``spans_handed`` are those given to processors whose exporter can't be watched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.sinks.lost_places import LostAt
from otel_recfn.sinks.spans.export_watch import ExportWatch
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.safe_text import safe_exception

FLUSH_TIMEOUT_S = 30.0
EXPORT_SECONDS = 1.0
"""So long an export is waited for beside the processor's thread, before a flush waits for as long as it takes; and so long a
flush may take when the program ends."""
OWN_PACE_SECONDS = 10.0
"""So long a processor's own thread may take to begin an export: the official one takes 5."""
CHUNKS_AT_THE_END = 3
"""How many chunks are handed on without a flush when the program ends: the processors' queues hold four."""
_logger = logging.getLogger(__name__)


class SpanDelivery:
    """Hands spans on, to one target at a time.

    Args:
        exports_beside: the processors' own threads export, where they have some; else spans are exported by ``flush``, in the
            calling thread, whose pace bounds what they cost.
    """

    def __init__(self, exports_beside: bool = False) -> None:
        self._exports_beside = exports_beside
        self._room_beside = self._gone = 0
        """How many spans may wait for exporters; how many that do will never be seen to be exported."""
        self._target: SpanTarget | None = None
        self._watch = ExportWatch()
        self._receivers: Sequence[Callable[[ReadableSpan], None]] = ()
        self._spans = self._unwatched = self._unflushed = 0
        """What was handed on; that whose exporters can't be watched; that since the last flush."""
        self._hurries = self._process_ends = False
        self.drives = False
        """Everything is to go out now: nothing is held back."""
        self._owed_since = 0.0
        """Since then processors have spans of ours that no exporter has finished with."""
        self._flushed = 0
        self._chunks = 1
        self._timeout_s = FLUSH_TIMEOUT_S
        self._logged = False
        self.chunk_size = 1
        """How many spans are handed on at once."""

    def use(self, target: SpanTarget) -> None:
        """Hand spans to this target from now on."""
        self._target = target
        self._watch.watch(target.exporters(), target.scope, target.leavable_exporters())
        self._receivers = target.receivers()
        self.chunk_size = target.chunk_size()
        self._room_beside = target.room_beside() if self._exports_beside and self._watch.watching else 0

    def has_room(self, spans: int) -> bool:
        """Whether ``make_room`` would not wait."""
        if self._room_beside and self._watch.is_fast:
            return self._unexported() + spans <= self._room_beside
        if self.holds:
            return self._unexported() + spans <= self.chunk_size
        return not self._unflushed or self._unflushed + spans <= self._chunks * self.chunk_size

    def make_room(self, spans: int, pace: Callable[[], None]) -> None:
        """Wait until this many spans fit into the processors' queues; an exporter that hangs is waited for here."""
        beside = self._room_beside and self._watch.is_fast and self._wait_for_exports(spans)
        if not beside and not self._wait_while_held(spans, pace):
            self._make_room_by_flushing(spans, pace)

    @property
    def holds(self) -> bool:
        """Whether spans wait until the processors' threads have exported those before them by themselves.

        That is where the exporters aren't known to work. More exports than the program's own would find a backend that is down
        or hangs, and the one that is under way when the program ends is waited for.
        """
        if self._hurries or self._process_ends or self.drives or not self._room_beside or not self._watch.is_unproven:
            return False
        return self._watch.owes(self._owed_since, OWN_PACE_SECONDS)

    def _wait_while_held(self, spans: int, pace: Callable[[], None]) -> bool:
        """Wait until there is room without a flush; False where there is none in time."""
        while held := self.holds:
            if self.has_room(spans):
                break
            self._watch.wait(EXPORT_SECONDS)
            pace()
        return held

    def _wait_for_exports(self, spans: int) -> bool:
        """Wait until the processors' threads have exported so much that these spans fit; False where they don't."""
        while self._unexported() + spans > self._room_beside:
            if not self._watch.wait(EXPORT_SECONDS):
                return False
        return True

    def _unexported(self) -> int:
        """How many spans wait for exporters, or are gone as those of a processor that was shut down are."""
        return self._spans - self._unwatched - self._watch.finished - self._gone

    def _make_room_by_flushing(self, spans: int, pace: Callable[[], None]) -> None:
        """A flush that failed at once is not repeated: a processor that was shut down, say, will not get any better."""
        while self._unflushed and self._unflushed + spans > self._chunks * self.chunk_size:
            began = time.monotonic()
            in_time = self.flush(self._timeout_s) or time.monotonic() - began < self._timeout_s
            if in_time or self._hurries:
                self._unflushed = 0
                self._gone += max(0, self._unexported())
                return
            pace()

    def deliver(self, spans: Sequence[ReadableSpan], told: int = 0) -> None:
        """Hand these spans to every processor; what they tell of losses is seen at the exporters."""
        del told
        if self._unexported() <= 0:
            self._owed_since = time.monotonic()
        self._spans += len(spans)
        self._unwatched += 0 if self._watch.watching else len(spans)
        self._unflushed += len(spans)
        for span in spans:
            for receive in self._receivers:
                try:
                    receive(span)
                except (Exception, SystemExit) as error:
                    self._log_once("a span processor raised in on_end; its spans count as failed", error)

    def idle(self) -> None:
        """The processors have threads of their own."""

    def flush(self, timeout_s: float) -> bool:
        """Have the processors export; what no exporter took by the end of it counts as failed, until one reports otherwise."""
        if self._target is None:
            return True
        flushed = self._target.force_flush(timeout_s)
        if flushed:
            self._unflushed = 0
        self._flushed = self._spans - self._unwatched
        return flushed

    def hurry(self, timeout_s: float) -> None:
        """The program ends: wait ``timeout_s`` seconds at most for each flush, and fill the queues where exports are fast.

        Without any time the SDK would flush nothing, and its queues drop what comes last.
        """
        chunks = CHUNKS_AT_THE_END if self._watch.is_fast or not self._watch.watching else 1
        self._hurries, self._chunks = True, max(self._chunks, chunks)
        self._timeout_s = max(timeout_s, EXPORT_SECONDS)

    @property
    def is_failing(self) -> bool:
        """Whether the last export failed, or hangs."""
        return self._watch.is_failing

    @property
    def has_failed(self) -> bool:
        """Whether the last export failed."""
        return self._watch.has_failed

    @property
    def lost(self) -> int:
        """See ``told_losses.Losing``."""
        return max(0, self._watch.finished - self._watch.exported)

    @property
    def lost_tellings(self) -> int:
        """See ``told_losses.Losing``."""
        return self._watch.lost_tellings

    @property
    def lost_at(self) -> LostAt:
        """See ``told_losses.Losing``."""
        return self._watch.refused_at

    def process_ends(self) -> None:
        """``remove`` is the end of what our spans may cost the program."""
        self._process_ends = True

    def remove(self) -> None:
        """Stop watching the exporters: they are left as they were found.

        But where the process ends and they are too slow, what waits in the processors' queues is kept from them: the provider
        would go on with it, ten seconds for each batch where the backend is down. These spans count as failed.
        """
        if self._unexported() > 0 and self._process_ends:
            self._flushed = self._spans - self._unwatched
            self._watch.refuse()
        else:
            self._watch.remove()

    def counters(self) -> Mapping[str, int]:
        """What became of the spans; the module's docstring says how the counts add up."""
        watched = self._spans - self._unwatched
        exported = min(self._watch.exported, watched)
        failed = max(0, self._flushed - exported, min(self._watch.finished, watched) - exported)
        return {
            "spans": self._spans,
            "spans_handed": self._unwatched,
            "spans_exported": exported,
            "spans_failed": failed,
            "spans_pending": watched - exported - failed,
        }

    def _log_once(self, message: str, error: BaseException) -> None:
        if not self._logged:
            self._logged = True
            _logger.error("otel-recfn: %s", message, exc_info=safe_exception(error))
