"""Where spans go at present: the program may set its tracer provider late, and another one later."""

from __future__ import annotations

from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.spans.hooked_spans import HookedMapper
from otel_recfn.sinks.spans.provider import ProviderResolver, SpanTarget
from otel_recfn.sinks.spans.span_hook import Hook, SpanHook
from otel_recfn.sinks.spans.way import Way
from otel_recfn.sinks.spans.way_out import WayOut


class CurrentTarget:
    """Of one sink.

    Args:
        tracer_provider: None for the global one.
        way_out: how spans leave.
        way: is told of the target.
        hook: the program's; None where it has none.
    """

    def __init__(self, tracer_provider: TracerProvider | None, way_out: WayOut, way: Way, hook: Hook | None) -> None:
        self._resolver, self._way_out, self._way = ProviderResolver(tracer_provider, way_out.provider), way_out, way
        self.hook = SpanHook(hook) if hook is not None else None
        """The program's, which is called for the spans of whatever target there is."""
        self._used: SpanTarget | None = None

    def resolve(self) -> SpanTarget | None:
        """The target, if anything takes spans now. From any thread."""
        return self._resolver.resolve()

    @property
    def lacks_provider(self) -> bool:
        """Whether the program has set no provider, or not yet. From any thread."""
        return self._resolver.lacks_provider

    def use(self) -> SpanTarget | None:
        """The target, for which spans are made and handed on from now on; None where nothing takes spans."""
        target = self._resolver.resolve()
        if target is None:
            return None
        try:
            return self._use(target)
        except Exception:  # of a span processor or an exporter that says what it is
            self._resolver.tell_once("the tracer provider raised; spans go where they went before")
            return self._used

    def _use(self, target: SpanTarget) -> SpanTarget:
        if target is self._used:
            self._way.delivery.use(target)
            return target
        mapper = self._way_out.mapper(target) if self.hook is None else HookedMapper(target, self.hook)
        self._way.delivery.use(target)
        self._used, self._way.mapper = target, mapper
        return target
