"""Finished spans to a provider's span processors, in chunks that their queues have room for, and what became of them.

    spans = exported + failed + dropped.shutdown + those that wait

``failed`` are those that an exporter did not take, ``dropped.shutdown`` those that none was seen to finish with. Where an
exporter can't be watched, what its processor was given is taken for ``exported``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.sinks.spans.export_watch import ExportWatch
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.own_thread import resting
from otel_recfn.support.safe_text import safe_exception

FLUSH_TIMEOUT_S = 30.0
OWN_PACE_SECONDS = 10.0
"""So long a processor's own thread may take to begin an export, of which the official one takes 5, and to finish it."""
_logger = logging.getLogger(__name__)


class Delivery(Protocol):
    """Hands spans on. Used by the sender's thread, but for ``remove``, ``counters`` and the properties."""

    @property
    def chunk_size(self) -> int:
        """How many spans are handed on at once."""

    def use(self, target: SpanTarget) -> None:
        """Spans are of this target from now on."""

    def make_room(self, spans: int) -> None:
        """Wait until there is room for so many; an exporter that hangs is waited for here."""

    def send(self, spans: Sequence[Any]) -> None:
        """Hand on spans, as the mapper made them."""

    def idle(self) -> None:
        """Nothing has come for a while."""

    def flush(self, timeout_s: float) -> bool:
        """Export what was handed on; False where the time wasn't enough."""

    @property
    def has_failed(self) -> bool:
        """Whether the last of what was sent was not taken."""

    @property
    def lost(self) -> int:
        """Spans that certainly nobody took."""

    @property
    def exports_here(self) -> bool:
        """Whether the calling thread is in the middle of an export, which nobody may wait for there."""

    def remove(self, process_ends: bool) -> None:
        """Leave everything as it was found. Where the process ends, nothing more of ours is exported."""

    def counters(self) -> Mapping[str, int]:
        """What became of the spans."""


class _Settled(NamedTuple):
    """When it was waited for exporters last: after a flush, or one that brought nothing."""

    spans: int
    """That had been handed on. Exporters may never finish with some, as those of a processor that was shut down."""
    finished: int


class SpanDelivery:
    """To the processors of one target at a time, whose own threads export."""

    def __init__(self) -> None:
        self._target: SpanTarget | None = None
        self._watch = ExportWatch()
        self._receivers: Sequence[Callable[[ReadableSpan], None]] = ()
        self._spans = self._unwatched = 0
        """What was handed on; of these, those whose exporters can't be watched."""
        self._settled = _Settled(0, 0)
        self._room = self.chunk_size = 1
        self._logged = False

    def use(self, target: SpanTarget) -> None:
        """See Delivery."""
        self._target = target
        self._watch.watch(target.exporters(), target.scope, target.leavable_exporters())
        self._receivers = target.receivers()
        self.chunk_size = target.chunk_size()
        self._room = max(target.room_beside(), self.chunk_size)

    def make_room(self, spans: int) -> None:
        """Wait for the processors' own threads; where these don't export, have them flush."""
        while self._waiting() and self._waiting() + spans > self._room:
            if not self._exports_beside() or not self._exported_some():
                finished = self._watch.finished
                self.flush(FLUSH_TIMEOUT_S)
                if self._watch.finished == finished:
                    self._settle()

    def _exports_beside(self) -> bool:
        """Whether the processors have threads that export before there is no room, as far as is known."""
        has_left_some = self._settled.spans > self._settled.finished
        is_stuck = has_left_some and self._watch.finished == self._settled.finished
        return self._watch.watching and self._room > self.chunk_size and not is_stuck

    def _settle(self) -> None:
        """Wait no more for what was handed on so far."""
        self._settled = _Settled(self._spans, self._watch.finished)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """See Delivery."""
        self._spans += len(spans)
        self._unwatched += 0 if self._watch.watching else len(spans)
        for span in spans:
            for receive in self._receivers:
                self._hand(receive, span)

    def _exported_some(self) -> bool:
        with resting():
            return self._watch.wait(OWN_PACE_SECONDS)

    def _waiting(self) -> int:
        """Spans that processors may still have in their queues."""
        return max(0, self._spans - self._settled.spans - (self._watch.finished - self._settled.finished))

    def _hand(self, receive: Callable[[ReadableSpan], None], span: ReadableSpan) -> None:
        try:
            receive(span)
        except (Exception, SystemExit) as error:
            if not self._logged:
                self._logged = True
                text = "otel-recfn: a span processor raised in on_end; its spans count as failed"
                _logger.error(text, exc_info=safe_exception(error))

    def idle(self) -> None:
        """The processors have threads of their own."""

    def flush(self, timeout_s: float) -> bool:
        """See Delivery."""
        if self._target is None:
            return True
        flushed = self._target.force_flush(timeout_s)
        if flushed:
            self._settle()
        return flushed

    @property
    def has_failed(self) -> bool:
        """See Delivery."""
        return self._watch.has_failed

    @property
    def lost(self) -> int:
        """See Delivery."""
        return self._watch.finished - self._watch.exported

    @property
    def exports_here(self) -> bool:
        """See Delivery."""
        return self._watch.exports_here

    def remove(self, process_ends: bool) -> None:
        """See Delivery.

        A provider goes on with what waits in its processors' queues, ten seconds for each batch where the backend is down. So
        exporters that are behind get none of our spans any more when the process ends.
        """
        if process_ends and self._waiting():
            self._watch.refuse()
            self._settle()
        else:
            self._watch.remove()

    def counters(self) -> Mapping[str, int]:
        """What became of the spans; the module's docstring says how the counts add up."""
        watched = self._spans - self._unwatched
        exported, finished = min(self._watch.exported, watched), min(self._watch.finished, watched)
        lost = max(0, finished - exported, watched - exported - self._waiting())
        failed = min(self._watch.refused, lost)
        return {"exported": exported + self._unwatched, "failed": failed, "dropped.shutdown": lost - failed}
