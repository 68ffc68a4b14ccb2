"""A request's bytes as OTLP JSON: one line, as the specification's file exporter writes it.

Protocol Buffers' JSON, but for what OTLP does otherwise: ids are hexadecimal, and enumerations are numbers. Whole numbers of 64
bits are texts.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from otel_recfn.sinks.otlp.wire import fields, signed

Reads = Callable[[Any], Any]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _int64(value: int) -> str:
    return str(signed(value))


def _fixed64(value: bytes) -> str:
    return str(int.from_bytes(value, "little"))


def _fixed32(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _double(value: bytes) -> float | str:
    number: float = struct.unpack("<d", value)[0]
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


class _Field(NamedTuple):
    """A field of a message."""

    name: str
    reads: Reads | str
    """Or the name of the message that it has."""
    repeated: bool = False


_KEY_VALUES = _Field("attributes", "KeyValue", True)
_MESSAGES: dict[str, dict[int, _Field]] = {
    "Request": {1: _Field("resourceSpans", "ResourceSpans", True)},
    "ResourceSpans": {
        1: _Field("resource", "Resource"),
        2: _Field("scopeSpans", "ScopeSpans", True),
        3: _Field("schemaUrl", _text),
    },
    "Resource": {1: _KEY_VALUES},
    "ScopeSpans": {1: _Field("scope", "Scope"), 2: _Field("spans", "Span", True), 3: _Field("schemaUrl", _text)},
    "Scope": {1: _Field("name", _text), 2: _Field("version", _text), 3: _KEY_VALUES},
    "Span": {
        1: _Field("traceId", bytes.hex),
        2: _Field("spanId", bytes.hex),
        3: _Field("traceState", _text),
        4: _Field("parentSpanId", bytes.hex),
        5: _Field("name", _text),
        6: _Field("kind", int),
        7: _Field("startTimeUnixNano", _fixed64),
        8: _Field("endTimeUnixNano", _fixed64),
        9: _KEY_VALUES,
        10: _Field("droppedAttributesCount", int),
        11: _Field("events", "Event", True),
        12: _Field("droppedEventsCount", int),
        13: _Field("links", "Link", True),
        14: _Field("droppedLinksCount", int),
        15: _Field("status", "Status"),
        16: _Field("flags", _fixed32),
    },
    "Event": {
        1: _Field("timeUnixNano", _fixed64),
        2: _Field("name", _text),
        3: _KEY_VALUES,
        4: _Field("droppedAttributesCount", int),
    },
    "Link": {
        1: _Field("traceId", bytes.hex),
        2: _Field("spanId", bytes.hex),
        3: _Field("traceState", _text),
        4: _KEY_VALUES,
        5: _Field("droppedAttributesCount", int),
        6: _Field("flags", _fixed32),
    },
    "Status": {2: _Field("message", _text), 3: _Field("code", int)},
    "KeyValue": {1: _Field("key", _text), 2: _Field("value", "AnyValue")},
    "AnyValue": {
        1: _Field("stringValue", _text),
        2: _Field("boolValue", bool),
        3: _Field("intValue", _int64),
        4: _Field("doubleValue", _double),
        5: _Field("arrayValue", "ArrayValue"),
        6: _Field("kvlistValue", "KeyValueList"),
        7: _Field("bytesValue", _base64),
    },
    "ArrayValue": {1: _Field("values", "AnyValue", True)},
    "KeyValueList": {1: _Field("values", "KeyValue", True)},
}


def json_line(request: bytes) -> bytes:
    """The request, with the end of its line."""
    return json.dumps(_read(request, "Request"), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _read(message: bytes, kind: str) -> dict[str, Any]:
    known, found = _MESSAGES[kind], dict[str, Any]()
    for number, _, content in fields(message):
        field = known[number]
        value = _read(content, field.reads) if isinstance(field.reads, str) else field.reads(content)  # type: ignore[arg-type]
        if field.repeated:
            values = found.get(field.name)
            if values is None:
                values = found[field.name] = []
            values.append(value)
        else:
            found[field.name] = value
    return found
