"""Where spans go at present: the program may set its tracer provider late, and another one later."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from otel_recfn.sinks.spans.delivery import Delivery
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import ProviderResolver, SpanTarget
from otel_recfn.sinks.spans.span_hook import Hook, HookedMapper, SpanHook
from otel_recfn.sinks.spans.way_out import WayOut


class CurrentTarget:
    """Of one sink.

    Args:
        resolver: tells what takes spans now, if anything does.
        way_out: how spans leave.
        delivery: is told of the target.
        hook: the program's; None where it has none.
    """

    def __init__(self, resolver: ProviderResolver, way_out: WayOut, delivery: Delivery, hook: Hook | None) -> None:
        self._resolver = resolver
        self._way_out, self._delivery = way_out, delivery
        self.hook = SpanHook(hook) if hook is not None else None
        """The program's, which is called for the spans of whatever target there is."""
        self._used: Sequence[object] = ()
        """The target that the delivery was told of last, and its parts."""
        self._mapper: SpanMapper | None = None

    def use(self) -> SpanMapper:
        """What makes spans for the target, which gets them from now on; for the last one where nothing takes spans now.

        Raises:
            RuntimeError: there has never been one.
        """
        target = self._resolver.resolve()
        if target is not None:
            try:
                self._use(target)
            except Exception:  # of a span processor or an exporter that says what it is
                self._resolver.tell_once("the tracer provider raised; spans go where they went before")
        if self._mapper is None:
            raise RuntimeError("the tracer provider was taken away before any span was sent")
        return self._mapper

    def _use(self, target: SpanTarget) -> None:
        now = [target, *target.parts()]
        if len(now) != len(self._used) or not all(map(is_, now, self._used)):
            self._delivery.use(target)
            self._mapper = self._way_out.mapper(target) if self.hook is None else HookedMapper(target, self.hook)
            self._used = now
