"""The OpenTelemetry instrumentor: keywords and environment in, a running session out."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_recfn.model.errors import InterpreterError, SettingError
from otel_recfn.model.scope import scopes_mask
from otel_recfn.settings import Settings
from otel_recfn.support.interpreters import refuse_subinterpreter

if TYPE_CHECKING:
    from otel_recfn.batches.selection import Selected
    from otel_recfn.session.capture import Capture
    from otel_recfn.sinks.protocol import Sink

log = logging.getLogger("otel_recfn")

STOP_SECONDS = 5.0


class OtelRecordFunctionInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Turns PyTorch's RecordFunction, ``record_function`` ranges and module calls into spans and a Chrome trace.

    One per process (the class is a singleton, as every OpenTelemetry instrumentor).
    """

    _capture: Capture | None = None
    """The running one, or the last."""

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
            tracer_provider: takes the spans; None for the global one, also when that is set later.
            scopes: a set of RecordScope; None, and the empty set as in PyTorch, for all. Module calls follow ``modules`` alone.
            chrome_trace: a path, ``.json`` or ``.json.gz``; None for no file.
            roots_per_second: traces that we start ourselves, beyond the first 100; None for all.
            record_shapes: record shapes and dtypes of operators' inputs.
            modules: record nn.Module calls and optimizer steps.
            buffer_bytes: bound of each recording thread's buffer.
            sinks: further sinks (``otel_recfn.sinks.protocol.Sink``), InMemorySink for example.
            enabled: False registers the instrumentation and records nothing.

        Every setting but ``tracer_provider`` and ``sinks`` can be given as ``OTEL_RECFN_<SETTING>``; keywords win.

        Raises:
            SettingError: a setting is unknown or has a value that isn't allowed, or the Chrome trace can't be written there.
            InterpreterError: this is a subinterpreter.
                Under ``opentelemetry-instrument`` they are logged instead, because they would stop other instrumentations.
        """
        automatic = bool(kwargs.get("skip_dep_check") or kwargs.get("raise_exception_on_conflict"))
        try:
            super().instrument(**kwargs)
        except SettingError:
            if not automatic:
                raise
            log.exception("otel-recfn is not instrumenting: correct the setting")
        except InterpreterError as error:
            if not automatic:
                raise
            log.warning("otel-recfn is not instrumenting: %s", error)

    def _instrument(self, **kwargs: Any) -> None:
        tracer_provider = _checked_provider(kwargs.pop("tracer_provider", None))
        further = _checked_sinks(kwargs.pop("sinks", ()))
        settings = Settings.resolve(kwargs)
        self._capture = None
        if not settings.enabled:
            return
        refuse_subinterpreter()
        from otel_recfn.session import process_session
        from otel_recfn.session.capture import Capture
        from otel_recfn.sinks.background import BackgroundSink
        from otel_recfn.sinks.spans.sink import SpansSink

        session = process_session()  # what can be refused is, before anything is opened
        spans = SpansSink(tracer_provider, roots_per_second=settings.roots_per_second)
        sinks = [*_make_files(settings), BackgroundSink(spans), *further]
        self._capture = Capture(_selected(settings), sinks, buffer_bytes=settings.buffer_bytes)
        session.start(self._capture)
        session.show_ranges(self._capture, spans)

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._capture is not None:
            from otel_recfn.session import process_session

            process_session().stop(self._capture, STOP_SECONDS)

    def uninstrument(self, **kwargs: Any) -> None:
        """Stop recording, and leave everything as it was found."""
        super().uninstrument(**kwargs)
        if not self.is_instrumented_by_opentelemetry:
            self._uninstrument()  # one that began meanwhile, in another thread or where a sink was closed

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send what was recorded to where it goes; False when ``timeout_s`` seconds aren't enough, or nothing records."""
        if self._capture is None:
            return False
        from otel_recfn.session import process_session

        return process_session().flush(self._capture, timeout_s)

    def counters(self) -> dict[str, int]:
        """``recorder.*`` (since the process began), ``rows`` and ``<sink>.*`` (since ``instrument()``).

        They stay readable after ``uninstrument()``, as of its end. Empty where nothing was recorded since ``instrument()``.
        """
        if self._capture is None:
            return {}
        from otel_recfn.session import process_session

        return process_session().counters(self._capture)


def _checked_provider(provider: Any) -> Any:
    if provider is not None and not callable(getattr(provider, "get_tracer", None)):
        raise SettingError(f"tracer_provider={provider!r} is not allowed; allowed: None or an OpenTelemetry TracerProvider")
    return provider


def _checked_sinks(sinks: Any) -> list[Sink]:
    wanted = ("write", "flush", "close", "counters", "after_fork_in_child")
    given = list(sinks) if isinstance(sinks, Iterable) else [sinks]
    for sink in given:
        missing = [name for name in wanted if not callable(getattr(sink, name, None))]
        if missing or not isinstance(getattr(sink, "name", None), str):
            raise SettingError(f"sinks={sinks!r} is not allowed; allowed: a list of sinks, as otel_recfn.sinks.protocol says")
    return given


def _selected(settings: Settings) -> Selected:
    from otel_recfn.batches.selection import Selected
    from otel_recfn.model.events import Extra

    extras = Extra.SHAPES if settings.record_shapes else Extra.NONE
    return Selected(scopes_mask(settings.scopes), extras, settings.modules)


def _make_files(settings: Settings) -> list[Sink]:
    from otel_recfn.sinks.chrome.sink import ChromeTraceSink

    return [ChromeTraceSink(settings.chrome_trace)] if settings.chrome_trace is not None else []
