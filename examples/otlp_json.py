"""Spans as OTLP JSON lines: each line a whole ExportTraceServiceRequest, as the Collector's otlpjsonfile receiver reads it.

Encoded straight from the span: by way of protobuf's JSON a span costs five times as much, more than the operator it tells of.
What OTLP asks for beyond plain JSON: ids in hexadecimal, 64-bit numbers as strings, enums as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200


class OtlpJsonLines(SpanExporter):
    """Appends a line for every export and flushes it, so that a crash leaves whole lines behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One line."""
        self._file.write(json.dumps(request(spans), separators=(",", ":")) + "\n")
        self._file.flush()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """The last call."""
        self._file.close()


def request(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """An ExportTraceServiceRequest: spans under their scope, scopes under their resource."""
    resources = []
    for _, of_resource in groupby(spans, key=lambda span: id(span.resource)):
        members = list(of_resource)
        scopes = [_scope_spans(list(group)) for _, group in groupby(members, key=lambda span: id(span.instrumentation_scope))]
        resources.append({"resource": {"attributes": _attributes(members[0].resource.attributes)}, "scopeSpans": scopes})
    return {"resourceSpans": resources}


def _scope_spans(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    scope = spans[0].instrumentation_scope
    named = {"name": scope.name, "version": scope.version or ""} if scope else {}
    return {"scope": named, "spans": [_span(span) for span in spans]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    encoded = {
        **_ids(span.context),
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP keeps 0 for "unspecified"
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
        "flags": _flags(span.context, span.parent),
    }
    if span.parent:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.events:
        encoded["events"] = [_event(event) for event in span.events]
    if span.links:
        encoded["links"] = [_link(link) for link in span.links]
    return encoded


def _ids(context: Any) -> dict[str, str]:
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _flags(context: Any, other: Any) -> int:
    """The trace flags, and whether ``other`` came from another process."""
    return context.trace_flags | HAS_IS_REMOTE | (IS_REMOTE if other and other.is_remote else 0)


def _link(link: Any) -> dict[str, Any]:
    flags = _flags(link.context, link.context)
    return {**_ids(link.context), "attributes": _attributes(link.attributes), "flags": flags}


def _event(event: Any) -> dict[str, Any]:
    return {"name": event.name, "timeUnixNano": str(event.timestamp), "attributes": _attributes(event.attributes)}


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


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
