"""The limits that a provider sets to the sizes of its spans.

They are applied only where they can bind: our spans have at most ``MAX_ATTRIBUTES``, far below the
default, one event and one link, and the SDK's bounded containers cost more than the whole span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import SpanLimits

MAX_ATTRIBUTES = 32
AttributeValue: TypeAlias = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes: TypeAlias = Mapping[str, AttributeValue]


class AppliedLimits:
    """The effect of a provider's ``SpanLimits`` on our spans."""

    def __init__(self, limits: SpanLimits) -> None:
        self._limits = limits
        spans_unbound = _unbound(limits.max_span_attributes, limits.max_span_attribute_length)
        events_unbound = _unbound(limits.max_event_attributes, limits.max_attribute_length)
        self.has_events = limits.max_events != 0
        self.has_links = limits.max_links != 0
        self.unbound = spans_unbound and events_unbound and self.has_events and self.has_links
        """Whether nothing of a span is cut."""

    def span_attributes(self, attributes: Attributes) -> Attributes:
        """The attributes of a span, cut to the limits and counted."""
        if self.unbound:
            return attributes
        return _bounded(
            attributes, self._limits.max_span_attributes, self._limits.max_span_attribute_length
        )

    def event_attributes(self, attributes: Attributes) -> Attributes:
        """The attributes of an event, likewise."""
        if self.unbound:
            return attributes
        return _bounded(
            attributes, self._limits.max_event_attributes, self._limits.max_attribute_length
        )


def _bounded(attributes: Attributes, max_count: int | None, max_length: int | None) -> Attributes:
    bounded: Any = BoundedAttributes(max_count, attributes, max_value_len=max_length)
    return cast(Attributes, bounded)


def _unbound(max_count: int | None, max_length: int | None) -> bool:
    return max_length is None and (max_count is None or max_count >= MAX_ATTRIBUTES)
