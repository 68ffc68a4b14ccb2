"""Spans as OTLP JSON lines: each line a whole ExportTraceServiceRequest, as the Collector's otlpjsonfile receiver reads it.

By way of protobuf's JSON a span costs 70 us, far more than the operator it tells of. So the text is put together here, piece
by piece, and pieces that repeat (names, most attributes) are remembered: 7 us. What OTLP asks for beyond plain JSON: ids in
hexadecimal, 64-bit numbers as strings, enums as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

NO_RESOURCE = Resource({})
HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200


class OtlpJsonLines(SpanExporter):
    """Appends each export as a line with one write: a crash leaves whole lines, and forked processes may share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"")
        self._file = path.open("ab", buffering=0)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One line."""
        line = f"{request(spans)}\n".encode()
        return SpanExportResult.SUCCESS if self._file.write(line) == len(line) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """The last call."""
        self._file.close()


def spans_in(path: Path) -> list[ReadableSpan]:
    """The spans of such a file, as far as a tree needs them."""
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    scopes = [scope for request in requests for each in request["resourceSpans"] for scope in each["scopeSpans"]]
    return [_read(span) for scope in scopes for span in scope["spans"]]


def _read(span: Mapping[str, Any]) -> ReadableSpan:
    trace_id, parent = int(span["traceId"], 16), span.get("parentSpanId")
    return ReadableSpan(
        span.get("name", ""),
        SpanContext(trace_id, int(span["spanId"], 16), False),
        SpanContext(trace_id, int(parent, 16), False) if parent else None,
        NO_RESOURCE,
        start_time=int(span["startTimeUnixNano"]),
        end_time=int(span["endTimeUnixNano"]),
    )


def request(spans: Sequence[ReadableSpan]) -> str:
    """An ExportTraceServiceRequest: spans under their scope, scopes under their resource."""
    resources = []
    for _, of_resource in groupby(spans, key=lambda span: id(span.resource)):
        members = list(of_resource)
        scopes = [_scope_spans(list(group)) for _, group in groupby(members, key=lambda span: id(span.instrumentation_scope))]
        resource = f'{{"attributes":{_attributes(members[0].resource.attributes)}}}'
        resources.append(f'{{"resource":{resource},"scopeSpans":{_list(scopes)}}}')
    return f'{{"resourceSpans":{_list(resources)}}}'


def _scope_spans(spans: Sequence[ReadableSpan]) -> str:
    scope = spans[0].instrumentation_scope
    named = json.dumps({"name": scope.name, "version": scope.version or ""} if scope else {})
    return f'{{"scope":{named},"spans":{_list(map(_span, spans))}}}'


def _span(span: ReadableSpan) -> str:
    return (
        f'{{{_ids(span.context)},{_parent(span.parent)}"name":{_text(span.name)},"kind":{span.kind.value + 1},'
        f'"startTimeUnixNano":"{span.start_time}","endTimeUnixNano":"{span.end_time}",'
        f'"attributes":{_attributes(span.attributes)},{_rarely(span)}"flags":{_flags(span.context, span.parent)}}}'
    )


def _rarely(span: ReadableSpan) -> str:
    """Status, events and links, of the few spans that have them."""
    fields = '"status":{},'
    if not span.status.is_unset:
        message = _text(span.status.description or "")
        fields = f'"status":{{"code":{span.status.status_code.value},"message":{message}}},'
    if span.events:
        fields += f'"events":{_list(map(_event, span.events))},'
    if span.links:
        fields += f'"links":{_list(map(_link, span.links))},'
    return fields


def _event(event: Any) -> str:
    return f'{{"name":{_text(event.name)},"timeUnixNano":"{event.timestamp}","attributes":{_attributes(event.attributes)}}}'


def _link(link: Any) -> str:
    flags = _flags(link.context, link.context)
    return f'{{{_ids(link.context)},"attributes":{_attributes(link.attributes)},"flags":{flags}}}'


def _ids(context: Any) -> str:
    return f'"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"'


def _parent(parent: Any) -> str:
    return f'"parentSpanId":"{parent.span_id:016x}",' if parent else ""


def _flags(context: Any, other: Any) -> int:
    """The trace flags, and whether ``other`` came from another process."""
    return int(context.trace_flags) | HAS_IS_REMOTE | (IS_REMOTE if other and other.is_remote else 0)


def _attributes(attributes: Mapping[str, Any] | None) -> str:
    return _list(_attribute(key, value) for key, value in (attributes or {}).items())


def _attribute(key: str, value: Any) -> str:
    if type(value) is int:  # most are, and no two alike
        return f'{{"key":{_text(key)},"value":{{"intValue":"{value}"}}}}'
    if type(value) is str:
        return _text_attribute(key, value)
    return f'{{"key":{_text(key)},"value":{json.dumps(_value(value))}}}'


@lru_cache(maxsize=4096)
def _text_attribute(key: str, value: str) -> str:
    return f'{{"key":{_text(key)},"value":{{"stringValue":{_text(value)}}}}}'


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):  # before int: a bool is one
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return json.dumps(text)


def _list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"
