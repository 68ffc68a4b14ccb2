"""Counts what became of our spans at the exporters.

Neither a span processor nor ``force_flush`` says whether an export succeeded: only the result of the exporter's ``export``
does. So ``export`` of each exporter instance is shadowed by a function that passes everything through unchanged and counts our
spans, which it knows by their instrumentation scope object. ``remove`` takes it away again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_recfn.sinks.lost_places import NOWHERE, LostAt, Place, with_more
from otel_recfn.sinks.spans.leavable_calls import CallLeft, LeavableCalls
from otel_recfn.sinks.spans.place_of_span import place_of, told_by
from otel_recfn.support.fork_safe_lock import ForkSafeLock

SLOW_SECONDS = 1.0


class ExportWatch:
    """Watches exporters for spans of the given scopes (compared by identity)."""

    def __init__(self) -> None:
        self._watched: dict[int, _WatchedExporter] = {}
        self._exported_before = self._finished_before = self._lost_tellings_before = 0
        self._refused_at_before = NOWHERE
        self._finished_some = threading.Event()

    def watch(self, exporters: Iterable[Any], scope: object, leavable: Iterable[Any] = ()) -> None:
        """Watch exactly these exporters, for spans of ``scope``, from now on.

        ``leavable``: those of them whose exports of such spans alone need not be waited for when the process ends.
        """
        wanted = {id(exporter): exporter for exporter in exporters}
        if wanted.keys() == self._watched.keys() and all(one.scope is scope for one in self._watched.values()):
            return
        self.remove()
        left = {id(exporter) for exporter in leavable}
        watched = [
            (key, _WatchedExporter(exporter, scope, self._finished_some, key in left)) for key, exporter in wanted.items()
        ]
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
    def lost_tellings(self) -> int:
        """What the spans that an exporter refused told of earlier losses; with several exporters, the largest sum counts."""
        return self._lost_tellings_before + max((one.lost_tellings for one in self._watched.values()), default=0)

    @property
    def refused_at(self) -> LostAt:
        """How many of our spans an exporter refused, and what they told, by place; with several, the one with most places."""
        watched = [one.refused_at for one in list(self._watched.values())]
        return max([self._refused_at_before, *watched], key=len)

    @property
    def is_fast(self) -> bool:
        """Whether every exporter's last export succeeded within ``SLOW_SECONDS``; false before the first one."""
        return bool(self._watched) and all(one.is_fast and not one.hangs for one in self._watched.values())

    @property
    def is_unproven(self) -> bool:
        """Whether an exporter's last export failed, or takes long, or there was none yet."""
        return any(not one.works or one.hangs for one in self._watched.values())

    def owes(self, since: float, seconds: float) -> bool:
        """Whether an export is under way, or ``seconds`` aren't over since ``since`` and the last one of ours."""
        now = time.monotonic()
        return any(one.exports or now - max(since, one.counted_at) < seconds for one in self._watched.values())

    @property
    def is_failing(self) -> bool:
        """Whether an exporter's last export failed, or takes longer than ``SLOW_SECONDS``; false before the first one."""
        return any(one.failed or one.hangs for one in self._watched.values())

    @property
    def has_failed(self) -> bool:
        """Whether an exporter's last export failed; false before the first one."""
        return any(one.failed for one in list(self._watched.values()))

    def wait(self, timeout_s: float) -> bool:
        """Until an exporter has finished with some; False when it took longer."""
        finished = self._finished_some.wait(timeout_s)
        self._finished_some.clear()
        return finished

    def refuse(self) -> None:
        """From now on exporters get the program's spans alone. An export of ours alone that is under way is left to itself."""
        for one in self._watched.values():
            one.refuse()

    def remove(self) -> None:
        """Leave every exporter as it was found."""
        self._exported_before, self._finished_before = self.exported, self.finished
        self._lost_tellings_before = self.lost_tellings
        self._refused_at_before = self.refused_at
        watched, self._watched = self._watched, {}
        for one in watched.values():
            one.uninstall()


class _WatchedExporter:
    def __init__(self, exporter: Any, scope: object, finished_some: threading.Event, leavable: bool) -> None:
        self.scope, self._finished_some = scope, finished_some
        self._calls = LeavableCalls() if leavable else None
        self.exported = self.finished = self.lost_tellings = 0
        self.refused_at = NOWHERE
        self.is_fast = self.works = self.failed = self._refuses = False
        self.counted_at = 0.0
        self._began: float | None = None
        self._exporter = exporter
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
        self._finished_some = threading.Event()  # in a forked child another thread may have been in the middle of the other one
        if vars(self._exporter).get("export") is not self._counting:
            return  # someone shadowed it after us, and still calls us: we go on passing through
        if self._shadowed is not None:
            self._exporter.export = self._shadowed
        else:
            del self._exporter.export

    def refuse(self) -> None:
        self._refuses = True
        if self._calls is not None:
            self._calls.leave()

    def _export(self, export: Callable[..., Any], spans: Sequence[ReadableSpan], *args: Any, **kwargs: Any) -> Any:
        result: Any = SpanExportResult.FAILURE
        if self._refuses:
            spans = [span for span in spans if not self._is_ours(span)]
            if not spans:
                return result
        ours = [span for span in spans if self._is_ours(span)]
        began = self._began = time.monotonic()
        try:
            if self._calls is not None and len(ours) == len(spans):
                result = self._calls.make(partial(export, spans, *args, **kwargs))
            else:
                result = export(spans, *args, **kwargs)
        except CallLeft:
            pass
        finally:
            self._began, self.failed = None, result is SpanExportResult.FAILURE
            self.works = not self.failed
            self.is_fast = self.works and time.monotonic() - began < SLOW_SECONDS
            if ours:
                self._count(ours)
                self._finished_some.set()
        return result

    def _count(self, ours: Sequence[ReadableSpan]) -> None:
        with self._lock:
            self.finished, self.counted_at = self.finished + len(ours), time.monotonic()
            if not self.failed:
                self.exported += len(ours)
                return
            self.lost_tellings += sum(told_by(span) for span in ours)
            refused_at = dict[Place, int]()
            for span in ours:
                place = place_of(span)
                refused_at[place] = refused_at.get(place, 0) + 1 + told_by(span)
            self.refused_at = with_more(self.refused_at, refused_at)

    @property
    def exports(self) -> bool:
        """Whether an export is under way."""
        return self._began is not None

    @property
    def hangs(self) -> bool:
        """Whether an export has taken long, and is not back."""
        began = self._began
        return began is not None and time.monotonic() - began > SLOW_SECONDS

    def _is_ours(self, span: ReadableSpan) -> bool:
        return getattr(span, "instrumentation_scope", None) is self.scope
