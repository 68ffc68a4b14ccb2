"""Counts what became of our spans at the exporters.

Neither a span processor nor ``force_flush`` says whether an export succeeded: only the result of the exporter's ``export``
does. So ``export`` of each exporter instance is shadowed by a function that passes everything through unchanged and counts our
spans, which it knows by their instrumentation scope object. ``remove`` takes it away again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.lost_places import NOWHERE, LostAt, Place, with_more
from otel_recfn.sinks.spans.awaited_parents import AwaitedParents, Id
from otel_recfn.sinks.spans.leavable_calls import CallLeft, LeavableCalls
from otel_recfn.sinks.spans.place_of_span import place_of, told_by
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.locked import locked
from otel_recfn.support.waker import Waker

SLOW_SECONDS = 1.0


class ExportWatch:
    """Watches exporters for spans of the given scopes (compared by identity)."""

    def __init__(self) -> None:
        self._watched: dict[int, _WatchedExporter] = {}
        self._exported_before = self._finished_before = self._lost_tellings_before = 0
        self._refused_at_before = NOWHERE
        self._waker = Waker()

    def watch(self, exporters: Iterable[Any], scope: object, leavable: Iterable[Any] = ()) -> None:
        """Watch exactly these exporters, for spans of ``scope``, from now on.

        ``leavable``: those of them whose exports of such spans alone need not be waited for when the process ends.
        """
        wanted = {id(exporter): exporter for exporter in exporters}
        if wanted.keys() == self._watched.keys() and all(one.scope is scope for one in self._watched.values()):
            return
        self.remove()
        left = {id(exporter) for exporter in leavable}
        watched = [(key, _WatchedExporter(exporter, scope, self._waker, key in left)) for key, exporter in wanted.items()]
        self._watched = {key: one for key, one in watched if one.install()}

    @property
    def watching(self) -> bool:
        """Whether there is an exporter whose results are seen."""
        return bool(self._watched)

    @property
    def exported(self) -> int:
        """Our spans that every exporter took; with several, the one that took fewest counts."""
        return self._exported_before + min([one.exported for one in self._watched.values()], default=0)

    @property
    def finished(self) -> int:
        """Our spans that every exporter took or refused; with several, the one that is farthest behind counts."""
        return self._finished_before + min([one.finished for one in self._watched.values()], default=0)

    @property
    def lost_tellings(self) -> int:
        """What the spans that an exporter refused told of earlier losses; with several exporters, the largest sum counts."""
        return self._lost_tellings_before + max([one.lost_tellings for one in self._watched.values()], default=0)

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
        return self._waker.wait(timeout_s)

    def refuse(self) -> None:
        """From now on exporters get the program's spans alone, and of ours the parents of spans that they got.

        An export of ours alone that is under way is left to itself.
        """
        for one in self._watched.values():
            one.refuse()

    def finished_by(self, exporter: Any) -> int | None:
        """Our spans that this one took or refused; None where it isn't watched."""
        one = self._watched.get(id(exporter))
        return self._finished_before + one.finished if one is not None else None

    def keep_for_children(self, exporter: Any, spans: Sequence[ReadableSpan]) -> None:
        """This exporter gets such a span with the first of its children alone."""
        self._watched[id(exporter)].keep_for_children(spans)

    def remove(self) -> None:
        """Leave every exporter as it was found."""
        self._exported_before, self._finished_before = self.exported, self.finished
        self._lost_tellings_before = self.lost_tellings
        self._refused_at_before = self.refused_at
        watched, self._watched = self._watched, {}
        for one in watched.values():
            one.uninstall()


class _WatchedExporter:
    def __init__(self, exporter: Any, scope: object, waker: Waker, leavable: bool) -> None:
        self.scope, self._waker = scope, waker
        self._calls = LeavableCalls() if leavable else None
        self.exported = self.finished = self.lost_tellings = 0
        self.refused_at = NOWHERE
        self.is_fast = self.works = self.failed = self.refuses = False
        self.counted_at = 0.0
        self._began: float | None = None
        self._parents = AwaitedParents()
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
        if vars(self._exporter).get("export") is not self._counting:
            return  # someone shadowed it after us, and still calls us: we go on passing through
        if self._shadowed is not None:
            self._exporter.export = self._shadowed
        else:
            del self._exporter.export

    def refuse(self) -> None:
        self.refuses = True
        if self._calls is not None:
            self._calls.leave()

    def _export(self, export: Callable[..., Any], spans: Sequence[ReadableSpan], *args: Any, **kwargs: Any) -> Any:
        result: Any = SpanExportResult.FAILURE
        spans, awaited = self._noted(spans)
        if self.refuses and not spans:
            return result
        ours = sum([self._is_ours(span) for span in spans])
        began = self._began = time.monotonic()
        try:
            if self._calls is not None and ours == len(spans):
                result = self._calls.make(partial(export, spans, *args, **kwargs))
            else:
                result = export(spans, *args, **kwargs)
        except CallLeft:
            awaited = ()  # they may arrive yet
        finally:
            self._began, self.failed = None, result is SpanExportResult.FAILURE
            self.works = not self.failed
            self.is_fast = self.works and time.monotonic() - began < SLOW_SECONDS
            if self.failed:
                self._forget(awaited)
            if ours:
                self._count(ours, spans)
                self._waker.wake()
        return result

    @locked
    def _forget(self, awaited: Sequence[Id]) -> None:
        self._parents.forget(awaited)

    @locked
    def _count(self, ours: int, spans: Sequence[ReadableSpan]) -> None:
        self.finished, self.counted_at = self.finished + ours, time.monotonic()
        self.exported += 0 if self.failed else ours
        if self.failed:
            self.lost_tellings += sum([told_by(span) for span in spans])
            self._note_refused([span for span in spans if self._is_ours(span)])

    def _note_refused(self, spans: Sequence[ReadableSpan]) -> None:
        with contextlib.suppress(*OUT_OF_MEMORY):  # they are counted all the same
            refused_at = dict[Place, int]()
            for span in spans:
                place = place_of(span)
                refused_at[place] = refused_at.get(place, 0) + 1 + told_by(span)
            self.refused_at = with_more(self.refused_at, refused_at)

    @locked
    def keep_for_children(self, spans: Sequence[ReadableSpan]) -> None:
        self._parents.hold_back(spans)

    def _noted(self, spans: Sequence[ReadableSpan]) -> tuple[Sequence[ReadableSpan], Sequence[Id]]:
        """What is exported of them, and which parents are awaited for it. All of them where there is no memory to tell."""
        try:
            return self._note(spans)
        except OUT_OF_MEMORY:  # this is the program's export
            return spans, ()

    @locked
    def _note(self, spans: Sequence[ReadableSpan]) -> tuple[Sequence[ReadableSpan], Sequence[Id]]:
        wanted = spans
        if self.refuses or self._parents.holds_back:
            wanted = self._parents.needed(spans, self._is_left_out)
        return wanted, self._parents.note(wanted)

    @property
    def exports(self) -> bool:
        """Whether an export is under way."""
        return self._began is not None

    @property
    def hangs(self) -> bool:
        """Whether an export has taken long, and is not back."""
        began = self._began
        return began is not None and time.monotonic() - began > SLOW_SECONDS

    def _is_left_out(self, span: ReadableSpan) -> bool:
        return self.refuses and self._is_ours(span)

    def _is_ours(self, span: ReadableSpan) -> bool:
        return getattr(span, "instrumentation_scope", None) is self.scope
