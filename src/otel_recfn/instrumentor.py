"""The OpenTelemetry instrumentor: keywords and environment in, a running session out."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_recfn.errors import CallRefused, RecfnError, RecorderUnavailable, SettingError
from otel_recfn.settings.table import (
    SETTINGS,
    Settings,
    sdk_is_disabled,
    selected,
    unknown_variables,
    with_arguments,
)
from otel_recfn.settings.values import DURATION
from otel_recfn.support import (
    processes,
)  # before the program forks, so that a child is known as one
from otel_recfn.support.native_part import native_part

if TYPE_CHECKING:
    from otel_recfn.session.capture import Capture
    from otel_recfn.session.session import Session
    from otel_recfn.sinks.spans.delivery import Delivery
    from otel_recfn.sinks.spans.sink import SpansSink
    from otel_recfn.support.processes import Given

log = logging.getLogger("otel_recfn")

STOP_SECONDS = 5.0
FILE_QUEUE_BYTES = 1 << 28
"""The most that waits for a slow disk."""
EXPORT_QUEUE_BYTES = 1 << 26
"""The most encoded spans that wait while a server is away."""
MOST_PICKLED_BYTES = 1 << 16
"""The most bytes of one setting, since each child gets them."""
USED_WITH = (
    "torch",
    "otel_recfn.user_ranges",
    "otel_recfn.profiling",
    "otel_recfn.legacy",
    "otel_recfn.tracing.wrappers",
)
"""Modules of which each program that has something to record imports one, unless it records Python calls alone. None is
imported by what a start imports, which could find only half of it."""


class OtelRecordFunctionInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Turns PyTorch's RecordFunction, ``record_function`` ranges and module calls into spans and a Chrome trace.

    One per process (the class is a singleton, as every OpenTelemetry instrumentor).
    """

    _capture: Capture | None = None
    """The capture of the last ``instrument()``, kept after its end for its counters."""
    _cancels: list[Callable[[], None]] = []  # noqa: RUF012 - replaced and not changed
    """Functions that cancel what waits for the program to import a module."""
    _automatic = False
    _inherited: Given | None = None
    """The settings that the parent process handed over, while this process records by them."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """torch where it is installed; programs without it have ``record_function``."""
        try:
            importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return ()
        return ("torch >= 2.4",)

    def instrument(self, **kwargs: Any) -> None:
        """Start recording.

        Args:
            kwargs: the settings of docs/settings.md.

        Every setting but the providers, ``sinks`` and ``span_hook`` can be given as ``OTEL_RECFN_<SETTING>``; keywords win.

        Raises:
            SettingError: a setting is unknown or has a value that isn't allowed, or the Chrome trace can't be written there.
            RecorderUnavailable: there is no native part here, or this is a subinterpreter or a free-threaded CPython.
            CallRefused: a signal handler calls during a start, stop or flush of its thread.

        ``opentelemetry-instrument`` would not go on to other instrumentations after an error, so there all are logged instead;
        and there recording starts when the program imports torch, or uses ranges of ours, as many programs never do.
        """
        self._end_inherited()
        self._instrument_or_log(kwargs)

    instrument.__doc__ = with_arguments(instrument.__doc__, SETTINGS)

    def _instrument_or_log(self, kwargs: dict[str, Any]) -> None:
        self._automatic = bool(
            kwargs.get("skip_dep_check") or kwargs.get("raise_exception_on_conflict")
        )
        conflict = (
            get_dependency_conflicts(self.instrumentation_dependencies())
            if kwargs.get("skip_dep_check")
            else None
        )
        if conflict is not None:
            log.error("otel-recfn is not instrumenting: %s", conflict)
            return
        again = self.is_instrumented_by_opentelemetry
        try:
            super().instrument(**kwargs)
        except BaseException as error:
            if not self.is_instrumented_by_opentelemetry:
                self._uninstrument()
            if not self._automatic or not isinstance(error, (RecfnError, MemoryError)):
                raise
            level = logging.WARNING if isinstance(error, RecorderUnavailable) else logging.ERROR
            log.log(
                level, "otel-recfn is not instrumenting: %s", str(error) or "there was no memory"
            )
            return
        for message in (
            () if again else unknown_variables(os.environ)
        ):  # last, as a log handler may call instrument()
            log.warning("%s", message)

    def _instrument(self, **kwargs: Any) -> None:
        settings = Settings.resolve(kwargs)
        self._capture = None
        beside_global = (
            settings.chrome_trace
            or settings.sinks
            or settings.tracer_provider
            or settings.meter_provider
        )
        if not settings.enabled or (sdk_is_disabled() and not beside_global):
            return
        native_part()
        from otel_recfn.pytorch.late_import import when_first_is_imported, when_imported

        inherited = self._inherited or {}
        automatic = inherited.get("automatic", self._automatic)
        processes.hand_over(
            partial(_given, settings, _handed_over(settings), automatic, inherited.get("provider"))
        )
        lost = "children that aren't forked are not recorded"
        self._cancels = [when_imported(processes.SPAWN, processes.watch, lost)]
        if (
            self._automatic and not settings.python_calls
        ):  # it may never import what has something to record
            late = partial(self._start_late, settings)
            self._cancels += [when_first_is_imported(USED_WITH, late, "nothing is recorded")]
        else:
            self._start(settings)

    def start_as_parent(self, given: Given) -> None:
        """Record as the parent does, in a child that isn't forked, unless the program called ``instrument()`` here."""
        if self.is_instrumented_by_opentelemetry:
            if not self._automatic or given["automatic"]:
                return
            self.uninstrument()  # opentelemetry-instrument did it here too, but the program has asked for something else
        self._inherited = given
        self._instrument_or_log({"skip_dep_check": True, **_taken_over(given["settings"])})

    def _end_inherited(self) -> None:
        """Stop recording as the parent does: what the program asks for itself comes first."""
        if self._inherited is not None and self.is_instrumented_by_opentelemetry:
            self.uninstrument()
        self._inherited = None

    def _start_late(self, settings: Settings) -> None:
        try:
            self._start(settings)
        except BaseException as error:
            self._uninstrument()
            if not isinstance(error, SettingError):
                raise
            log.error("otel-recfn is not instrumenting: %s", error)

    def _start(self, settings: Settings) -> None:
        from otel_recfn.session.capture import Capture
        from otel_recfn.session.session import process_session
        from otel_recfn.sinks.chrome.sink import ChromeTraceSink
        from otel_recfn.sinks.chrome.writer import TraceWriter
        from otel_recfn.sinks.metrics.sink import MetricsSink

        session = process_session()  # it may refuse, so it comes before the trace file is made
        spans = self._spans_sink(settings, session)
        metrics = MetricsSink(settings.meter_provider)
        files = []
        if (
            settings.chrome_trace is not None
        ):  # a process that records as its parent does makes it with its first range
            writer = TraceWriter(
                settings.chrome_trace, create_now=self._inherited is None, of_process=True
            )
            files = [ChromeTraceSink(writer, FILE_QUEUE_BYTES)]
        # Metrics are closed last, because they report the final counters of the other sinks.
        capture = Capture(
            selected(settings),
            [*files, spans, *settings.sinks, metrics],
            buffer_bytes=settings.buffer_bytes,
            spans=spans,
            open_range_s=settings.open_range_s,
            exit_timeout_s=settings.exit_timeout_s,
            names_spans=bool(files),
        )
        metrics.report_from(partial(session.counters, capture))
        self._capture = capture  # stopped, with its sinks closed, if anything fails from here on
        for file in files:
            file.start()
        spans.start()
        session.start(capture)

    def _spans_sink(self, settings: Settings, session: Session) -> SpansSink:
        from otel_recfn.pytorch.data_worker import data_worker
        from otel_recfn.sinks.spans.budgets import Volume
        from otel_recfn.sinks.spans.sink import Process, SpansSink

        volume = Volume(
            settings.span_budget,
            settings.ordinary_span_budget,
            settings.trace_span_budget,
            settings.spans_per_second,
            torch_names=settings.span_names == "torch",
        )
        process = Process(
            recorder_lost=session.recorder_lost,
            flush=self.flush,
            ends=lambda: session.process_ends,
            exit_timeout_s=settings.exit_timeout_s,
            find_worker=data_worker,
        )
        delivery = _delivery(settings, self._inherited)
        return SpansSink(
            settings.tracer_provider,
            settings.roots_per_second,
            volume,
            settings.span_hook,
            delivery,
            process,
        )

    def _uninstrument(self, **kwargs: Any) -> None:
        self._inherited = None
        processes.stop()
        for cancel in self._cancels:
            cancel()
        if self._capture is not None:
            from otel_recfn.session.session import process_session

            process_session().stop(self._capture, STOP_SECONDS)

    def uninstrument(self, **kwargs: Any) -> None:
        """Stop recording, and leave everything as it was found.

        Where a signal handler calls during a start, stop or flush of its thread, that is logged instead, and recording goes on.
        """
        try:
            super().uninstrument(**kwargs)
            if (
                not self.is_instrumented_by_opentelemetry
            ):  # a sink that was being closed may have called instrument()
                self._uninstrument()
        except CallRefused as error:
            log.error("otel-recfn is still instrumenting: %s", error)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send what was recorded; False if ``timeout_s`` seconds aren't enough, or nothing records."""
        timeout_s = DURATION.checked("timeout_s", timeout_s)
        if self._capture is None:
            return False
        from otel_recfn.session.session import process_session

        return process_session().flush(self._capture, timeout_s)

    def counters(self) -> dict[str, int]:
        """Counts of what was recorded since ``instrument()`` and of what became of it, which show losses and their causes.

        ``recorded`` + ``added`` = ``exported`` + ``folded`` + ``unsampled`` + ``failed`` + ``waiting`` + all of ``dropped.*``:
        docs/metrics.md says what each is. After ``uninstrument()`` they stay as they were. Empty if nothing was recorded.
        """
        if self._capture is None:
            return {}
        from otel_recfn.session.session import process_session

        return process_session().counters(self._capture)


def start_in_child(given: Given) -> None:
    """Record here as the parent of this process does."""
    OtelRecordFunctionInstrumentor().start_as_parent(given)


def _given(
    settings: Settings, pickled: dict[str, bytes], automatic: bool, provider_of_parent: bytes | None
) -> Given:
    """The settings that a child gets. ``automatic``: those that opentelemetry-instrument would set there."""
    provider = None
    if isinstance(settings.span_exporter, str):
        from otel_recfn.sinks.spans.provider import pickled_parts

        provider = (
            pickled_parts(settings.tracer_provider or trace.get_tracer_provider())
            or provider_of_parent
        )
    return {"starts": __name__, "automatic": automatic, "settings": pickled, "provider": provider}


def _handed_over(settings: Settings) -> dict[str, bytes]:
    """The settings, each pickled on its own, as a child may know their classes only later. Paths and variables are resolved
    here, where the parent has them. What can't be pickled is left out: there the child has its default."""
    found: dict[str, bytes] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "span_hook" and value is not None and not isinstance(value, FunctionType):
            continue  # a method's object may be a whole model
        if each.name == "chrome_trace" and value is not None:
            with suppress(OSError):  # if the working directory was removed
                value = str(Path(value).absolute())
        with suppress(Exception):  # pickling an object of the program's may raise anything
            pickled = pickle.dumps(value)
            if len(pickled) <= MOST_PICKLED_BYTES:
                found[each.name] = pickled
    return found


def _taken_over(pickled: Mapping[str, bytes]) -> dict[str, Any]:
    """The keywords of ``instrument()`` in the child."""
    found: dict[str, Any] = {}
    for name, value in pickled.items():
        with suppress(Exception):  # a class that the child doesn't have
            found[name] = pickle.loads(value)
    with suppress(Exception):
        found["sinks"] = [
            sink
            for each in found.pop("sinks", ())
            if (sink := each.after_fork_in_child()) is not None
        ]
    return found


def _delivery(settings: Settings, inherited: Given | None) -> Delivery | None:
    """The delivery of spans by ``span_exporter``; None if they go through the provider's processors."""
    if settings.span_exporter is None:
        return None
    from otel_recfn.sinks.otlp.delivery import otlp_delivery
    from otel_recfn.sinks.spans.provider import provider_from

    parts = inherited["provider"] if inherited is not None else None
    provider = provider_from(parts) if parts is not None else None
    return otlp_delivery(
        settings.span_exporter, settings.export_request_bytes, EXPORT_QUEUE_BYTES, provider
    )
