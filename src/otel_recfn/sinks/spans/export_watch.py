"""Counts what became of our spans at the exporters.

Neither a span processor nor ``force_flush`` says whether an export succeeded: only the result of the exporter's ``export``
does. So ``export`` of each exporter instance is shadowed by a function that passes everything through unchanged and counts our
spans, which it knows by their instrumentation scope object. ``remove`` takes it away again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_recfn.sinks.spans.leavable_calls import CallLeft, LeavableCalls
from otel_recfn.support.fork_safe_lock import ForkSafeLock


class ExportWatch:
    """Watches exporters for spans of one scope (compared by identity)."""

    def __init__(self) -> None:
        self._watched: dict[int, _WatchedExporter] = {}
        self._exported_before = self._finished_before = self._refused_before = 0
        self._export_ended = threading.Event()

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
            (key, _WatchedExporter(exporter, scope, self._export_ended, key in left)) for key, exporter in wanted.items()
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
        """From now on exporters get the program's spans alone. An export of ours alone that is under way is left to itself."""
        for one in self._watched.values():
            one.refuse()

    def remove(self) -> None:
        """Leave every exporter as it was found."""
        self._exported_before, self._finished_before, self._refused_before = self.exported, self.finished, self.refused
        watched, self._watched = self._watched, {}
        for one in watched.values():
            one.uninstall()


class _WatchedExporter:
    def __init__(self, exporter: Any, scope: object, export_ended: threading.Event, leavable: bool) -> None:
        self._calls = LeavableCalls() if leavable else None
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

    def refuse(self) -> None:
        self.refuses = True
        if self._calls is not None:
            self._calls.leave()

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
            call = partial(export, spans, *args, **kwargs)
            result = self._calls.make(call) if self._calls is not None and given == len(spans) else call()
            answered = True
        except CallLeft:
            pass
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
