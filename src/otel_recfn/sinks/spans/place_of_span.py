"""What a finished span says of where it is, and of what was lost."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.sinks.lost_places import Place

DROPPED = "recfn.dropped"
"""The attribute: ranges that were dropped before they became spans, and spans that nobody took."""


def place_of(span: ReadableSpan) -> Place:
    """Its trace, and the thread that it names."""
    return Place(span.context.trace_id if span.context else 0, _number(span, "thread.id"))


def told_by(span: ReadableSpan) -> int:
    """Of how many losses it tells."""
    return _number(span, DROPPED)


def _number(span: ReadableSpan, attribute: str) -> int:
    value = (span.attributes or {}).get(attribute, 0)
    return value if isinstance(value, int) else 0
