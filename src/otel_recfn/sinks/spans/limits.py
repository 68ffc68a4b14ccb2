"""The provider's span limits, applied where they can bind.

Our spans have at most ``MOST_ATTRIBUTES`` attributes, ``MOST_EVENTS`` events and one link, far below the default limits; the
SDK's bounded containers cost more than the whole span, so they are used only where a limit is lower than that, or cuts texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, SpanLimits
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link

MOST_ATTRIBUTES = 32
MOST_EVENTS = 2

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes: TypeAlias = Mapping[str, AttributeValue]


class AppliedLimits:
    """What a provider's ``SpanLimits`` do to our spans."""

    def __init__(self, limits: SpanLimits) -> None:
        self._limits = limits
        self.attributes_unbound = _unbound(limits.max_span_attributes, limits.max_span_attribute_length)
        """Whether the attributes of a span can stay as they are."""
        self._event_attributes_unbound = _unbound(limits.max_event_attributes, limits.max_attribute_length)
        has_room = (limits.max_events is None or limits.max_events >= MOST_EVENTS) and limits.max_links != 0
        self.unbound = self.attributes_unbound and self._event_attributes_unbound and has_room
        """Whether nothing of a span is cut."""

    def span_attributes(self, attributes: Attributes) -> Attributes:
        """The attributes of a span, cut to the limits and counted."""
        if self.attributes_unbound:
            return attributes
        limits = self._limits
        return _bounded(attributes, limits.max_span_attributes, limits.max_span_attribute_length)

    def events(self, named: Mapping[str, Attributes], timestamp_ns: int) -> Sequence[Event]:
        """Events of these names, or what the limits leave of them."""
        events = [Event(name, self._event_attributes(attributes), timestamp_ns) for name, attributes in named.items()]
        most = self._limits.max_events
        return BoundedList.from_seq(most, events) if most is not None and most < len(events) else events

    def _event_attributes(self, attributes: Attributes) -> Attributes:
        limits = self._limits
        if self._event_attributes_unbound:
            return attributes
        return _bounded(attributes, limits.max_event_attributes, limits.max_attribute_length)

    def links(self, link: Link) -> Sequence[Link]:
        """One link, or what the limits leave of it."""
        limits = self._limits
        return BoundedList.from_seq(limits.max_links, (link,)) if limits.max_links == 0 else (link,)


def _bounded(attributes: Attributes, max_count: int | None, max_length: int | None) -> Attributes:
    bounded: Any = BoundedAttributes(max_count, attributes, max_value_len=max_length)
    return cast(Attributes, bounded)


def _unbound(max_count: int | None, max_length: int | None) -> bool:
    return max_length is None and (max_count is None or max_count >= MOST_ATTRIBUTES)
