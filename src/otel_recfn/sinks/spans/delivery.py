"""Finished spans to a provider's span processors, in chunks that they don't drop, and what became of them.

    spans = spans_exported + spans_failed + spans_pending + spans_handed

``spans_handed`` are those given to processors whose exporter can't be watched.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.lost_places import LostAt
from otel_recfn.sinks.spans.export_watch import ExportWatch
from otel_recfn.sinks.spans.provider import Receiver, SpanTarget
from otel_recfn.sinks.spans.turn import Turn
from otel_recfn.support.safe_text import safe_exception

FLUSH_TIMEOUT_S = 30.0
EXPORT_SECONDS = 1.0
"""So long an export is waited for beside the processor's thread, before a flush waits for as long as it takes; and so long a
flush may take when the time is over."""
OWN_PACE_SECONDS = 10.0
"""So long a processor's own thread may take to begin an export: the official one takes 5."""
CHUNKS_AT_THE_END = 3
"""How many chunks are handed on without a flush when the program ends: the processors' queues hold four."""
_ANY_ERROR = (Exception, SystemExit)  # made once: there may be no memory for it in the middle of an error
_logger = logging.getLogger(__name__)


Waiting = tuple[Sequence[Receiver], deque[ReadableSpan]]
"""Spans, and who is to get them."""


@dataclass(slots=True)
class Handed:
    """What was given to be handed on, up to now."""

    spans: int
    unwatched: int
    """Those of them whose exporters can't be watched."""
    unflushed: int
    waiting: deque[ReadableSpan]
    """Those of them that the processors haven't got yet."""


class SpanDelivery:
    """Hands spans on, to one target at a time.

    Args:
        turn: who waits for processors lets another thread go on.
        exports_beside: the processors' own threads export, where they have some; else spans are exported by ``flush``, in the
            calling thread, whose pace bounds what they cost.
    """

    def __init__(self, turn: Turn, exports_beside: bool = False) -> None:
        self._turn, self._exports_beside = turn, exports_beside
        self._room_beside = self._gone = 0
        """How many spans may wait for exporters; how many that do will never be seen to be exported."""
        self._target: SpanTarget | None = None
        self._watch = ExportWatch()
        self._receivers: Sequence[Receiver] = ()
        self._taken: list[ReadableSpan | None] = []
        """Spans that another thread than the superseded one hands on, and that are in none of these two yet; None where it has
        handed them on itself."""
        self._now: list[Waiting] = []
        """For processors that only queue them."""
        self._left: list[Waiting] = []
        """For those that may take long, when nobody can wait any more."""
        self._superseded = self._hurries = self._process_ends = False
        self._keeps = False
        """Spans wait at the exporters for their children."""
        self.handed = Handed(0, 0, 0, deque())
        """Replaced as a whole by whoever counts the rows of these spans: both at once, or none where there is no memory."""
        self.drives = False
        """Everything is to go out now: nothing is held back."""
        self._owed_since = 0.0
        """Since then processors have spans of ours that no exporter has finished with."""
        self._flushed = 0
        self._chunks: float = 1
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
        if self._superseded:
            return True
        if self._room_beside and self._watch.is_fast:
            return self._unexported() + spans <= self._room_beside
        if self.holds:
            return self._unexported() + spans <= self.chunk_size
        return not self.handed.unflushed or self.handed.unflushed + spans <= self._chunks * self.chunk_size

    def make_room(self, spans: int, pace: Callable[[], None]) -> None:
        """Wait until this many spans fit into the processors' queues; an exporter that hangs is waited for here."""
        if self._superseded:
            return
        beside = self._room_beside and self._watch.is_fast and self._wait_for_exports(spans)
        if not beside and not self._wait_while_held(spans):
            self._make_room_by_flushing(spans, pace)

    @property
    def holds(self) -> bool:
        """Whether spans wait until the processors' threads have exported those before them by themselves.

        That is where the exporters aren't known to work. More exports than the program's own would find a backend that is down
        or hangs, and the one that is under way when the program ends is waited for.
        """
        if self._superseded or self._hurries or self.drives or not self._room_beside or not self._watch.is_unproven:
            return False
        return self._watch.owes(self._owed_since, OWN_PACE_SECONDS)

    def _wait_while_held(self, spans: int) -> bool:
        """Wait until there is room without a flush; False where there is none in time."""
        held = self.holds
        while held and not self.has_room(spans):
            self._turn.wait()
            try:
                self._watch.wait(EXPORT_SECONDS)
            finally:
                self._turn.go_on()
            held = self.holds
        return held

    def _wait_for_exports(self, spans: int) -> bool:
        """Wait until the processors' threads have exported so much that these spans fit; False where they don't."""
        while self._unexported() + spans > self._room_beside:
            self._turn.wait()
            try:
                if not self._watch.wait(EXPORT_SECONDS):
                    return False
            finally:
                self._turn.go_on()
        return True

    def _unexported(self) -> int:
        """How many spans wait for exporters, or are gone as those of a processor that was shut down are."""
        return self.handed.spans - self.handed.unwatched - self._watch.finished - self._gone

    def _make_room_by_flushing(self, spans: int, pace: Callable[[], None]) -> None:
        """A flush that failed at once is not repeated: a processor that was shut down, say, will not get any better."""
        while self.handed.unflushed and self.handed.unflushed + spans > self._chunks * self.chunk_size:
            began = time.monotonic()
            in_time = self.flush(self._timeout_s) or time.monotonic() - began < self._timeout_s
            if in_time or self._hurries:
                self.handed.unflushed = 0
                self._gone += max(0, self._unexported())
                return
            pace()

    def with_more(self, spans: Sequence[ReadableSpan], told: int = 0) -> Handed:
        """What ``handed`` is when these spans are among them; what they tell of losses is seen at the exporters."""
        del told
        before, more = self.handed, len(spans)
        if self._unexported() <= 0:
            self._owed_since = time.monotonic()
        unwatched = before.unwatched + (0 if self._watch.watching else more)
        return Handed(before.spans + more, unwatched, before.unflushed + more, deque([*before.waiting, *spans]))

    def hand(self) -> None:
        """Hand the spans that wait to every processor. Where there is no memory to begin with one, it waits on."""
        if self._superseded:
            self._hand_without_waiting()
            return
        self._turn.wait()
        try:
            self._hand_to(self._receivers, self.handed.waiting)
        finally:
            self._turn.go_on()

    def idle(self) -> None:
        """The processors have threads of their own."""

    def supersede(self) -> None:
        """Wait for nothing any more: another thread than this one waits for an exporter. What that has in hand is handed on."""
        self._superseded, self._hurries, self._chunks = True, True, math.inf
        self._hand_without_waiting()

    def hand_left(self) -> None:
        """Hand on what the superseding thread could not wait for."""
        self._hand_each(self._left)

    def _hand_each(self, left: list[Waiting]) -> None:
        """Where there is no memory in the middle, the next call goes on."""
        while left:
            self._hand_to(*left[0])
            del left[0]

    def _hand_without_waiting(self) -> None:
        """Each span is always in one place, wherever there is no memory: the next call goes on."""
        self._take_waiting()
        spans = [span for span in self._taken if span is not None]
        receivers, nothing = self._receivers if spans else (), list[ReadableSpan | None]()
        queues = [((each,), deque(self._those_that_fit(each, spans))) for each in receivers if not each.may_wait]
        others = [((each,), deque(spans)) for each in receivers if each.may_wait]
        now, left = [*self._now, *queues], [*self._left, *others]
        self._taken, self._now, self._left = nothing, now, left
        self._hand_each(self._now)

    def _take_waiting(self) -> None:
        """All of them, while another thread may take some too."""
        waiting = self.handed.waiting
        while waiting:
            self._taken.append(None)  # room for the span, which would be in no place if there was no memory for it
            try:
                self._taken[-1] = waiting.popleft()
            except IndexError:
                return

    def _those_that_fit(self, receiver: Receiver, spans: Sequence[ReadableSpan]) -> Sequence[ReadableSpan]:
        """A full queue would drop its oldest spans, also such as others need. What doesn't fit waits at the exporter for its
        children, which are in the queue or exported already."""
        finished = self._watch.finished_by(receiver.exporter)
        if finished is None:
            return spans
        queued = self.handed.spans - self.handed.unwatched - self._gone - finished - len(spans)
        room = max(0, receiver.queue_size - max(0, queued))
        if len(spans) <= room:
            return spans
        try:
            self._watch.keep_for_children(receiver.exporter, spans[int(room) :])
        except OUT_OF_MEMORY:
            return spans
        self._keeps = True
        return spans[: int(room)]

    def _hand_to(self, receivers: Iterable[Receiver], waiting: deque[ReadableSpan]) -> None:
        while waiting:
            each = iter(receivers)
            try:
                span = waiting.popleft()
            except IndexError:  # another thread has superseded this one
                return
            for receiver in each:
                try:
                    receiver.receive(span)
                except _ANY_ERROR as error:
                    self._log_once("a span processor raised in on_end; its spans count as failed", error)

    def flush(self, timeout_s: float) -> bool:
        """Have the processors export; what no exporter took by the end of it counts as failed, until one reports otherwise."""
        if self._target is None:
            return True
        self._turn.wait()
        try:
            flushed = self._target.force_flush(timeout_s)
        finally:
            self._turn.go_on()
        if flushed:
            self.handed.unflushed = 0
        self._flushed = self.handed.spans - self.handed.unwatched
        return flushed

    def hurry(self, timeout_s: float) -> None:
        """The program ends: wait ``timeout_s`` seconds at most for each flush, and fill the queues where exports are fast.

        Without any time the SDK would flush nothing, and its queues drop what comes last; whoever waits too long is superseded.
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

        But where the process ends and they are too slow, what waits in the processors' queues is kept from them, unless it is a
        parent of what they got: the provider would go on with it, ten seconds for each batch where the backend is down. These
        spans count as failed. Where parents wait there for their children, these exporters stay watched, too.
        """
        if self._unexported() <= 0 or not (self._process_ends or self._keeps):
            self._watch.remove()
            return
        self._flushed = self.handed.spans - self.handed.unwatched
        if self._process_ends:
            self._watch.refuse()

    def counters(self) -> Mapping[str, int]:
        """What became of the spans; the module's docstring says how the counts add up."""
        spans, unwatched = self.handed.spans, self.handed.unwatched
        watched = spans - unwatched
        exported = min(self._watch.exported, watched)
        failed = max(0, self._flushed - exported, min(self._watch.finished, watched) - exported)
        return {
            "spans": spans,
            "spans_handed": unwatched,
            "spans_exported": exported,
            "spans_failed": failed,
            "spans_pending": watched - exported - failed,
        }

    def _log_once(self, message: str, error: BaseException) -> None:
        if not self._logged:
            self._logged = True
            try:
                _logger.error("otel-recfn: %s", message, exc_info=safe_exception(error))
            except OUT_OF_MEMORY:  # the other spans come first
                pass
