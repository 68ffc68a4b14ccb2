"""Finished spans to a provider's span processors, in chunks that their queues have room for, and what became of them.

    spans = exported + failed + dropped.shutdown + those that wait

``failed`` are those that an exporter did not take, ``dropped.shutdown`` those that none was seen to finish with. Where an
exporter can't be watched, what its processor was given is taken for ``exported``.

Neither a span processor nor ``force_flush`` says whether an export succeeded: only the result of the exporter's ``export``
does. So ``export`` of each exporter instance is shadowed by a function that passes everything through unchanged and counts our
spans, which it knows by their instrumentation scope object. ``remove`` takes it away again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.own_thread import resting
from otel_recfn.support.safe_text import safe_exception


class ExportWatch:
    """Watches exporters for spans of one scope (compared by identity)."""

    def __init__(self) -> None:
        self._watched: dict[int, _WatchedExporter] = {}
        self._exported_before = self._finished_before = self._refused_before = 0
        self._export_ended = threading.Event()

    def watch(self, exporters: Iterable[Any], scope: object) -> None:
        """Watch exactly these exporters, for spans of ``scope``, from now on."""
        wanted = {id(exporter): exporter for exporter in exporters}
        if wanted.keys() == self._watched.keys() and all(one.scope is scope for one in self._watched.values()):
            return
        self.remove()
        watched = [(key, _WatchedExporter(exporter, scope, self._export_ended)) for key, exporter in wanted.items()]
        self._watched = {key: one for key, one in watched if one.install()}

    @property
    def watching(self) -> bool:
        """Whether there is an exporter whose results are seen."""
        return bool(self._watched)

    @property
    def exported(self) -> int:
        """Our spans that every exporter took; with several, the one that took fewest counts."""
        return self._exported_before + min((one.exported for one in self._watched.values()), default=0)

    @property
    def finished(self) -> int:
        """Our spans that every exporter took or refused; with several, the one that is farthest behind counts."""
        return self._finished_before + min((one.finished for one in self._watched.values()), default=0)

    @property
    def refused(self) -> int:
        """Our spans that an exporter was given and did not take; with several, the one that took fewest counts."""
        return self._refused_before + max((one.refused for one in self._watched.values()), default=0)

    @property
    def has_failed(self) -> bool:
        """Whether an exporter's last export failed; false before the first one."""
        return any(one.failed for one in self._watched.values())

    @property
    def exports_here(self) -> bool:
        """Whether the calling thread is in the middle of an export."""
        return any(threading.get_ident() in one.exporting for one in self._watched.values())

    def wait(self, timeout_s: float) -> bool:
        """Until an exporter has finished with some; False when it took longer."""
        ended = self._export_ended.wait(timeout_s)
        self._export_ended.clear()
        return ended

    def refuse(self) -> None:
        """From now on exporters get the program's spans alone."""
        for one in self._watched.values():
            one.refuses = True

    def remove(self) -> None:
        """Leave every exporter as it was found."""
        self._exported_before, self._finished_before, self._refused_before = self.exported, self.finished, self.refused
        watched, self._watched = self._watched, {}
        for one in watched.values():
            one.uninstall()


class _WatchedExporter:
    def __init__(self, exporter: Any, scope: object, export_ended: threading.Event) -> None:
        self.scope = scope
        self.exported = self.finished = self.refused = 0
        self.failed = self.refuses = False
        self.exporting: set[int] = set()
        """The threads that are in the middle of an export."""
        self._exporter, self._export_ended = exporter, export_ended
        self._lock = ForkSafeLock()
        self._shadowed = vars(exporter).get("export") if hasattr(exporter, "__dict__") else None
        self._counting = partial(self._export, exporter.export)

    def install(self) -> bool:
        try:
            self._exporter.export = self._counting
        except (AttributeError, TypeError):  # slots, or a frozen class: its results stay unknown
            return False
        return True

    def uninstall(self) -> None:
        self._export_ended = threading.Event()  # in a forked child another thread may have been in the middle of the other one
        if vars(self._exporter).get("export") is not self._counting:
            return  # someone shadowed it after us, and still calls us: we go on passing through
        if self._shadowed is not None:
            self._exporter.export = self._shadowed
        else:
            del self._exporter.export

    def _export(self, export: Callable[..., Any], spans: Sequence[ReadableSpan], *args: Any, **kwargs: Any) -> Any:
        theirs = [span for span in spans if getattr(span, "instrumentation_scope", None) is not self.scope]
        ours = given = len(spans) - len(theirs)
        if self.refuses and ours:
            spans, given = theirs, 0
            if not spans:
                return SpanExportResult.FAILURE
        result: Any = SpanExportResult.FAILURE
        answered, thread = False, threading.get_ident()
        self.exporting.add(thread)
        try:
            result = export(spans, *args, **kwargs)
            answered = True
        except (Exception, SystemExit):
            answered = True
            raise
        finally:
            self.exporting.discard(thread)
            with self._lock:
                self.failed = result is SpanExportResult.FAILURE
                self.finished += ours
                self.exported += 0 if self.failed else given
                self.refused += given if self.failed and answered else 0
            self._export_ended.set()
        return result


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
        self._watch.watch(target.exporters(), target.scope)
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
                try:
                    receive(span)
                except (Exception, SystemExit) as error:
                    self._tell_raised(error)

    def _exported_some(self) -> bool:
        with resting():
            return self._watch.wait(OWN_PACE_SECONDS)

    def _waiting(self) -> int:
        """Spans that processors may still have in their queues."""
        return max(0, self._spans - self._settled.spans - (self._watch.finished - self._settled.finished))

    def _tell_raised(self, error: BaseException) -> None:
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


class WayOut(Protocol):
    """One of the ways."""

    @property
    def provider(self) -> TracerProvider | None:
        """Whose spans they are where the program has no provider; None: then there are none."""

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """What makes spans of ranges."""

    def delivery(self) -> Delivery:
        """What hands them on."""

    def after_fork_in_child(self) -> WayOut:
        """The same in a forked child."""


class ThroughProcessors:
    """To the provider's span processors."""

    provider: TracerProvider | None = None

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """Spans of the SDK."""
        return SpanMapper(target)

    def delivery(self) -> Delivery:
        """In chunks that they have room for."""
        return SpanDelivery()

    def after_fork_in_child(self) -> WayOut:
        """The same."""
        return self
