"""The OpenTelemetry instrumentor, which starts a session by keywords and environment variables."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import trace
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_recfn.errors import CallRefused, RecfnError, RecorderUnavailable, SettingError
from otel_recfn.settings.checking import IGNORED
from otel_recfn.settings.selecting import select_by_settings
from otel_recfn.settings.setting import ENVIRONMENT_PREFIX, with_arguments
from otel_recfn.settings.table import SETTINGS, Settings
from otel_recfn.settings.values import DURATION
from otel_recfn.settings.variables import sdk_is_disabled, wrong_variables

# Before the program forks, so that a child is known as one.
from otel_recfn.support import processes
from otel_recfn.support.forks import ForkSafeLock, current_own_thread
from otel_recfn.support.interruptions import ignoring_errors
from otel_recfn.support.logs import log
from otel_recfn.support.native_part import native_part

if TYPE_CHECKING:
    from otel_recfn.session.capture import Capture
    from otel_recfn.session.session import Session
    from otel_recfn.sinks.spans.delivery import Delivery
    from otel_recfn.sinks.spans.sink import SpansSink
    from otel_recfn.support.processes import Inherited


T = TypeVar("T")
U = TypeVar("U")
STOP_SECONDS = 5.0
FILE_QUEUE_BYTES = 1 << 28
"""The most that waits for a slow disk."""
EXPORT_QUEUE_BYTES = 1 << 26
"""The most encoded spans that wait while a server is away."""
MAX_PICKLED_BYTES = 1 << 16
"""The most bytes of one setting, since each child gets them."""
USED_WITH = (
    "torch",
    "otel_recfn.user_ranges",
    "otel_recfn.profiling",
    "otel_recfn.legacy",
    "otel_recfn.tracing.wrappers",
)
"""Modules of which each program that has something to record imports one, unless it records Python
calls alone.

None is imported by what a start imports, which could find only half of it.
"""


class OtelRecordFunctionInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """The OpenTelemetry instrumentation: records PyTorch's operators, module calls and
    ``record_function`` ranges as spans, and as a Chrome trace.

    There is one in each process: the class is a singleton, like every OpenTelemetry instrumentor.
    """

    _capture: Capture | None = None
    """The capture of the last ``instrument()``, kept after its end for its counters."""
    _cancels: list[Callable[[], None]] = []  # noqa: RUF012 - replaced and not changed
    """Functions that cancel what waits for the program to import a module."""
    _switching = ForkSafeLock()
    """The lock of whoever switches it on or off: two threads would both start a capture, and one
    of these never end.
    """
    _automatic = False
    _keywords: frozenset[str] = frozenset()
    """The settings that the last ``instrument()`` was given as keywords."""
    _unusable: list[str] = []  # noqa: RUF012 - replaced and not changed
    """A message for each variable that asks for what can't be had."""
    _inherited: Inherited | None = None
    """The settings that the parent process handed over, while this process records by them."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """The requirement on torch if it is installed; without it ``record_function`` works."""
        try:
            importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return ()
        return ("torch >= 2.4",)

    def instrument(self, **kwargs: Any) -> None:
        """Start recording.

        Args:
            kwargs: the settings of docs/settings.md.

        An environment variable ``OTEL_RECFN_<SETTING>`` sets each setting, too, except the
        providers, ``sinks`` and ``span_hook``. A keyword wins over a variable. A variable whose
        value isn't allowed is logged and ignored.

        Raises:
            SettingError: a keyword is unknown or has a value that isn't allowed, or the Chrome
                trace can't be written there.
            RecorderUnavailable: there is no native part here, or this is a subinterpreter or a
                free-threaded CPython.
            CallRefused: a signal handler called it while a start, stop or flush ran in its thread.

        Under ``opentelemetry-instrument`` recording starts when the program imports torch or uses
        our ranges, because many programs do neither. Errors are logged there instead of raised,
        because after an exception it would skip the remaining instrumentations.
        """
        with self._switching_alone():
            self._end_inherited()
            self._instrument_or_log(kwargs)

    instrument.__doc__ = with_arguments(instrument.__doc__, SETTINGS)

    def _switching_alone(self) -> AbstractContextManager[bool]:
        """Let other threads wait that switch it on or off, but not for ever: what this one calls
        may wait for them.

        Threads of ours don't wait, as this one may wait for them, while a sink that they call does
        so.
        """
        return self._switching.held(0.0 if current_own_thread() is not None else STOP_SECONDS)

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
        self._log_variables(() if again else wrong_variables(os.environ))

    def _log_variables(self, messages: Iterable[str]) -> None:
        """Log what is wrong with variables, last, as a log handler may call ``instrument()``."""
        unusable, self._unusable = self._unusable, []
        for message in (*messages, *unusable):
            log.warning("%s", message)

    def _instrument(self, **kwargs: Any) -> None:
        settings = Settings.resolve(kwargs)
        self._capture = None
        self._keywords = frozenset(kwargs)
        self._unusable = []
        if not settings.enabled or sdk_is_disabled():
            return
        native_part()
        from otel_recfn.pytorch.late_import import call_at_first_import, call_at_import

        inherited = self._inherited or {}
        automatic = inherited.get("automatic", self._automatic)
        processes.pass_to_children(
            partial(
                _payload_for_children,
                settings,
                _pickled_settings(settings),
                automatic,
                inherited.get("provider"),
            )
        )
        lost = "children that aren't forked are not recorded"
        self._cancels = [call_at_import(processes.SPAWN, processes.watch, lost)]
        # It may never import what has something to record.
        if self._automatic and not settings.python_calls:
            late = partial(self._start_late, settings)
            self._cancels += [call_at_first_import(USED_WITH, late, "nothing is recorded")]
        else:
            self._start(settings)

    def start_as_parent(self, payload: Inherited) -> None:
        """Record as the parent does, in a child that isn't forked, unless the program called
        ``instrument()`` here.
        """
        if self.is_instrumented_by_opentelemetry:
            if not self._automatic or payload["automatic"]:
                return
            # Opentelemetry-instrument did it here too, but the program has asked for something
            # else.
            self.uninstrument()
        self._inherited = payload
        self._instrument_or_log(
            {"skip_dep_check": True, **_unpickled_settings(payload["settings"])}
        )

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
        self._log_variables(())

    def _usable(self, name: str, value: T, use: Callable[[T], U]) -> U | None:
        """What ``use`` makes of a setting's value; None if a variable asks for something that can't
        be had.

        Raises:
            SettingError: a keyword does.
        """
        try:
            return use(value)
        except SettingError as error:
            if name in self._keywords:
                raise
            self._unusable.append(f"{ENVIRONMENT_PREFIX}{name.upper()}: {error}. {IGNORED}")
            return None

    def _start(self, settings: Settings) -> None:
        from otel_recfn.session.capture import Capture
        from otel_recfn.session.session import process_session
        from otel_recfn.sinks.chrome.sink import ChromeTraceSink
        from otel_recfn.sinks.chrome.writer import TraceWriter
        from otel_recfn.sinks.metrics.sink import MetricsSink

        session = process_session()  # it may refuse, so it comes before the trace file is made
        spans = self._spans_sink(settings, session)
        torch_names = settings.span_names == "torch"
        metrics = MetricsSink(settings.meter_provider, torch_names=torch_names)
        files: list[ChromeTraceSink] = []
        # A process that records as its parent does makes it with its first range.
        if settings.chrome_trace is not None:
            make = partial(TraceWriter, create_now=self._inherited is None, per_process=True)
            writer = self._usable("chrome_trace", settings.chrome_trace, make)
            if writer is not None:
                files = [ChromeTraceSink(writer, FILE_QUEUE_BYTES, session.recorder_lost)]
        # Metrics are closed last, because they report the final counters of the other sinks.
        capture = Capture(
            select_by_settings(settings),
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
            flush=partial(self._flush, spans_alone=True),
            deliver_by=lambda: session.deliver_by,
            exit_timeout_s=settings.exit_timeout_s,
            find_worker=data_worker,
        )
        delivery = self._usable(
            "span_exporter", settings, partial(_delivery, inherited=self._inherited)
        )
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
        """Stop recording, and restore everything that ``instrument()`` changed.

        If a signal handler calls it while a start, stop or flush runs in its thread, that is
        logged, and recording continues.
        """
        try:
            with self._switching_alone():
                super().uninstrument(**kwargs)
                # A sink that was being closed may have called instrument().
                if not self.is_instrumented_by_opentelemetry:
                    self._uninstrument()
        except CallRefused as error:
            log.error("otel-recfn is still instrumenting: %s", error)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send everything that has ended, and write it to files and sinks.

        Returns False if ``timeout_s`` seconds were not enough, if there is no recording, or if
        instrumentation is suppressed, as in an exporter.
        """
        return self._flush(DURATION.check_value("timeout_s", timeout_s))

    def _flush(self, timeout_s: float, *, spans_alone: bool = False) -> bool:
        if self._capture is None:
            return False
        from otel_recfn.session.session import process_session

        return process_session().flush(self._capture, timeout_s, spans_alone=spans_alone)

    def counters(self) -> dict[str, int]:
        """The number of operations since ``instrument()``, by outcome; it shows losses and causes.

        ``recorded`` + ``added`` = ``exported`` + ``folded`` + ``unsampled`` + ``failed`` +
        ``waiting`` + all of ``dropped.*``: docs/metrics.md explains each counter. The counters keep
        their values after ``uninstrument()``. Empty if nothing was instrumented.
        """
        if self._capture is None:
            return {}
        from otel_recfn.session.session import process_session

        return process_session().counters(self._capture)


def start_in_child(payload: Inherited) -> None:
    """Record here as the parent of this process does."""
    OtelRecordFunctionInstrumentor().start_as_parent(payload)


def _payload_for_children(
    settings: Settings, pickled: dict[str, bytes], automatic: bool, parent_provider: bytes | None
) -> Inherited:
    """The settings that a child gets.

    ``automatic``: those that opentelemetry-instrument would set there.
    """
    provider = None
    if isinstance(settings.span_exporter, str):
        from otel_recfn.sinks.spans.child_provider import pickled_parts

        provider = (
            pickled_parts(settings.tracer_provider or trace.get_tracer_provider())
            or parent_provider
        )
    return {"starts": __name__, "automatic": automatic, "settings": pickled, "provider": provider}


def _pickled_settings(settings: Settings) -> dict[str, bytes]:
    """The settings, each pickled on its own, as a child may know their classes only later.

    Paths and variables are resolved here, where the parent has them. What can't be pickled is left
    out: there the child has its default.
    """
    found: dict[str, bytes] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "span_hook" and value is not None and not isinstance(value, FunctionType):
            continue  # a method's object may be a whole model
        if each.name == "chrome_trace" and value is not None:
            with suppress(OSError):  # if the working directory was removed
                value = str(Path(value).absolute())
        with ignoring_errors():  # pickling an object of the program's may raise anything
            pickled = pickle.dumps(value)
            if len(pickled) <= MAX_PICKLED_BYTES:
                found[each.name] = pickled
    return found


def _unpickled_settings(pickled: Mapping[str, bytes]) -> dict[str, Any]:
    """The keywords of ``instrument()`` in the child."""
    found: dict[str, Any] = {}
    for name, value in pickled.items():
        with ignoring_errors():  # a class that the child doesn't have
            found[name] = pickle.loads(value)
    with ignoring_errors():
        found["sinks"] = [
            sink
            for each in found.pop("sinks", ())
            if (sink := each.after_fork_in_child()) is not None
        ]
    return found


def _delivery(settings: Settings, inherited: Inherited | None) -> Delivery | None:
    """The delivery of spans by ``span_exporter``; None if they go through the provider's
    processors.
    """
    if settings.span_exporter is None:
        return None
    from otel_recfn.sinks.otlp.delivery import otlp_delivery
    from otel_recfn.sinks.spans.child_provider import provider_from

    parts = inherited["provider"] if inherited is not None else None
    provider = provider_from(parts) if parts is not None else None
    return otlp_delivery(
        settings.span_exporter, settings.export_request_bytes, EXPORT_QUEUE_BYTES, provider
    )
