"""How finished spans leave: through the provider's span processors, or another way that has the same two parts."""

from __future__ import annotations

from typing import Protocol

from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.spans.delivery import Delivery, SpanDelivery
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget


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
