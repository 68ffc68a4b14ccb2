"""The SDK's finished spans as OTLP spans, in bytes: what the native encoder makes of a plan's rows, for spans that are objects.

The bytes are those that the official encoder's messages have; a test compares both. What that encoder refuses (a whole number
of more than 64 bits) is left out, as it does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState
from opentelemetry.trace.status import Status

from otel_recfn.sinks.otlp.wire import double, field, fixed32, fixed64, integer, text

_logger = logging.getLogger(__name__)

SPANS_OF_SCOPE = 2
"""The number of the field that spans are in."""
_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5}
_REMOTE_IS_KNOWN, _IS_REMOTE = 0x100, 0x200
_MOST_INT64, _LEAST_INT64 = (1 << 63) - 1, -(1 << 63)


def span_field(span: ReadableSpan) -> bytes:
    """The span as ScopeSpans has it."""
    context: SpanContext = span.context
    parts = [
        field(1, context.trace_id.to_bytes(16, "big")),
        field(2, context.span_id.to_bytes(8, "big")),
        trace_state_field(context.trace_state),
        field(4, span.parent.span_id.to_bytes(8, "big")) if span.parent is not None else b"",
        text(5, span.name),
        integer(6, _KINDS[span.kind]),
        _time(7, span.start_time),
        _time(8, span.end_time),
        attribute_fields(9, span.attributes),
        _count(10, span.dropped_attributes),
        *[field(11, _event(event)) for event in span.events],
        _count(12, span.dropped_events),
        *[field(13, _link(link)) for link in span.links],
        _count(14, span.dropped_links),
        status_field(span.status),
        fixed32(16, _flags(span.parent)),
    ]
    return field(SPANS_OF_SCOPE, b"".join(parts))


def trace_state_field(state: TraceState | None) -> bytes:
    """A span's trace state."""
    return text(3, ",".join([f"{key}={value}" for key, value in state.items()])) if state else b""


def status_field(status: Status) -> bytes:
    """A span's status."""
    code = status.status_code.value
    return field(15, text(2, status.description or "") + (integer(3, code) if code else b""))


def event_fields(name: str, attributes: Mapping[str, Any] | None) -> bytes:
    """What follows an event's time."""
    return text(2, name) + attribute_fields(3, attributes)


def attribute_fields(number: int, attributes: Mapping[str, Any] | None) -> bytes:
    """Each attribute as a field of this number."""
    found = []
    for key, value in (attributes or {}).items():
        try:
            found.append(field(number, _key_value(key, value)))
        except (TypeError, ValueError, AttributeError, RecursionError):  # the official encoder leaves it out and logs it, too
            _logger.warning("otel-recfn: the attribute %r of a span is left out: OTLP has no value for a %s", key, type(value))
    return b"".join(found)


def _event(event: Event) -> bytes:
    time = _time(1, event.timestamp)
    return time + event_fields(event.name, event.attributes) + _count(4, event.dropped_attributes)


def _link(link: Link) -> bytes:
    context = link.context
    ids = field(1, context.trace_id.to_bytes(16, "big")) + field(2, context.span_id.to_bytes(8, "big"))
    dropped = _count(5, link.dropped_attributes)
    return ids + attribute_fields(4, link.attributes) + dropped + fixed32(6, _flags(context))


def _key_value(key: str, value: Any) -> bytes:
    return text(1, key) + field(2, _any_value(value))


def _any_value(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bool):
        return integer(2, value)
    if isinstance(value, str):
        return field(1, value.encode("utf-8", "backslashreplace"))
    if isinstance(value, int):
        if not _LEAST_INT64 <= value <= _MOST_INT64:
            raise ValueError
        return integer(3, value)
    if isinstance(value, float):
        return double(4, value)
    if isinstance(value, bytes):
        return field(7, value)
    if isinstance(value, Sequence):
        return field(5, b"".join([field(1, _any_value(each)) for each in value]))
    if isinstance(value, Mapping):
        return field(6, b"".join([field(1, _key_value(str(key), each)) for key, each in value.items()]))
    raise TypeError


def _time(number: int, time_ns: int | None) -> bytes:
    return fixed64(number, time_ns) if time_ns else b""


def _count(number: int, count: int) -> bytes:
    return integer(number, count) if count else b""


def _flags(context: SpanContext | None) -> int:
    return _REMOTE_IS_KNOWN | (_IS_REMOTE if context is not None and context.is_remote else 0)
