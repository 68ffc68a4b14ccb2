"""The search for the tracer provider that takes spans: the one that was given, or the global one.

``span_target.py`` says what is read of the SDK's, and ``listener.py`` how a processor of ours is
registered there.
"""

from __future__ import annotations

# An exporter's first request imports these, maybe in our sender's thread. A fork in the
# middle of an import would leave the child a lock that nobody releases, so they are imported here.
import encodings.idna  # noqa: F401
import logging
import netrc  # noqa: F401
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from otel_recfn.sinks.spans.listener import SpanListener, can_be_removed
from otel_recfn.sinks.spans.span_target import TRACER_PARTS, SpanTarget, own_tracer
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import GuardedLog

MAX_PROXIES = 8
"""The most proxies around a provider."""
_logger = GuardedLog(logging.getLogger(__name__), {})


class ProviderResolver:
    """The provider, found late: the global one may be set after ``instrument()``, and be replaced
    in tests.

    ``found`` is called with each provider that spans go to from now on, and what calls its
    processors. Where spans need no processors of a provider's, ``step_spans`` gets those of steps.
    Then the program needs no provider either: while it has none, or if it has another vendor's,
    resource and sampler are those of ``otherwise``, or of one that OpenTelemetry's variables
    configure, which nobody else sees.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        otherwise: trace.TracerProvider | None = None,
        found: Callable[[Any, Any], object] | None = None,
        step_spans: SpanProcessor | None = None,
    ) -> None:
        self._explicit, self.otherwise, self._on_found = tracer_provider, otherwise, found
        self._step_spans = step_spans
        self._provider: Any = None
        self._target: SpanTarget | None = None
        self._warned = self._logged = False

    def resolve(self) -> SpanTarget | None:
        """The target of spans; None without an SDK provider, or if it is disabled.

        The last target if resolving raises.
        """
        try:
            provider = self._found()
            if provider is not self._provider:
                self._target = self._find_target(provider)
                if self._target is not None and self._on_found is not None:
                    self._on_found(self._target.provider, self._target.multi_processor)
                self._provider = provider
            target = self._target
            return target if target is not None and target.is_enabled() else None
        except BaseException as error:
            if raised_by_signal_handler(error):
                raise
            if not self._logged:
                self._logged = True
                _logger.exception(
                    "otel-recfn: the tracer provider raised; spans go where they went before"
                )
            return self._target

    @property
    def lacks_provider(self) -> bool:
        """Whether none was given, and the global one was not set so far."""
        return isinstance(self._found(), trace.ProxyTracerProvider)

    def _found(self) -> trace.TracerProvider:
        provider = provider_inside(self._explicit or trace.get_tracer_provider())
        is_missing = (
            isinstance(provider, trace.ProxyTracerProvider) and self._step_spans is not None
        )
        return self._other_provider() if is_missing else provider

    def _other_provider(self) -> trace.TracerProvider:
        self.otherwise = self.otherwise or TracerProvider(shutdown_on_exit=False)
        return self.otherwise

    def _find_target(self, provider: trace.TracerProvider) -> SpanTarget | None:
        if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return None
        target = _target_at(provider, self._step_spans)
        if target is not None or isinstance(own_tracer(provider), trace.NoOpTracer):
            return target
        if self._step_spans is not None:
            return _target_at(self._other_provider(), self._step_spans)
        if not self._warned:
            self._warned = True
            _logger.warning(
                "otel-recfn: %s is no tracer provider of opentelemetry-sdk, and has none inside, so"
                " operators don't become spans there; send them to an OTLP backend by"
                ' instrument(span_exporter="otlp"), or record them to a local file by'
                ' instrument(chrome_trace="trace.json.gz")',
                type(provider).__qualname__,
            )
        return None


def _target_at(
    provider: trace.TracerProvider, step_spans: SpanProcessor | None = None
) -> SpanTarget | None:
    """The target at a provider; None if it is none of the SDK's."""
    tracer = own_tracer(provider)
    return (
        SpanTarget(provider, tracer, step_spans)
        if all(hasattr(tracer, part) for part in TRACER_PARTS)
        else None
    )


def listener_at(provider: trace.TracerProvider) -> SpanListener | None:
    """A listener at a provider; None if that is none of the SDK's, or the listener could not be
    taken out again.
    """
    target = _target_at(provider_inside(provider))
    if target is None or not can_be_removed(target.multi_processor):
        return None
    listener = SpanListener()
    listener.register(target.provider, target.multi_processor)
    return listener


def provider_inside(provider: trace.TracerProvider) -> trace.TracerProvider:
    """The SDK's provider that a proxy has as an attribute, as logfire's; also one that does
    nothing, until the proxy is set up.

    Any other provider itself.
    """
    inner = provider
    for _ in range(MAX_PROXIES):
        if isinstance(inner, (TracerProvider, trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return inner
        within = [
            each
            for each in getattr(inner, "__dict__", {}).values()
            if isinstance(each, trace.TracerProvider)
        ]
        if len(within) != 1:
            break
        inner = within[0]
    return provider
