"""A file as *Upload* on Jaeger's page reads it, by the rules of its sources.

The page (jaeger-ui's ``utils/readJsonFile.tsx``) takes ``.json`` and ``.jsonl``: one JSON document,
else one a line. Where every line has ``resourceSpans`` these are joined into one request. Jaeger
(``POST /api/transform``) reads that with the Collector's ``ptrace.JSONUnmarshaler``, which skips
fields that it doesn't know without a word; here they are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Check = Mapping[str, Any]


def uploaded(file: Path) -> list[dict[str, Any]]:
    """The spans of a file, of all its traces.

    Raises:
        AssertionError: Jaeger would refuse the file, or lose something of it.
    """
    assert file.suffix in (".json", ".jsonl")
    text = file.read_text(encoding="utf-8")
    try:
        documents = [json.loads(text)]
    except ValueError:
        documents = [json.loads(line) for line in text.split("\n") if line.strip()]
    assert all("resourceSpans" in document for document in documents), (
        "it would be taken for Jaeger's own JSON"
    )
    request = {
        "resourceSpans": [each for document in documents for each in document["resourceSpans"]]
    }
    _check(request, REQUEST, "request")
    for resource in request["resourceSpans"]:
        named = [
            each for each in resource["resource"]["attributes"] if each["key"] == "service.name"
        ]
        assert len(named) == 1, "the page files spans by service"
    scopes = [scope for resource in request["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


def _check(value: Any, rule: Any, place: str) -> None:
    if isinstance(rule, Mapping):
        assert isinstance(value, dict), place
        assert set(value) <= set(rule), f"{place}: {set(value) - set(rule)} would be lost"
        for name, part in value.items():
            _check(part, rule[name], f"{place}.{name}")
    elif isinstance(rule, list):
        assert isinstance(value, list), place
        for part in value:
            _check(part, rule[0], place)
    else:
        assert rule(value), f"{place}: {value!r}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_float(value: Any) -> bool:
    return isinstance(value, (int, float)) or value in ("NaN", "Infinity", "-Infinity")


def _is_number(low: int, high: int) -> Any:
    """A whole number, also as a text: JSON's own are doubles to many."""

    def check(value: Any) -> bool:
        return (
            not isinstance(value, bool)
            and str(value).lstrip("-").isdecimal()
            and low <= int(value) <= high
        )

    return check


def _is_id(length: int) -> Any:
    return lambda value: (
        isinstance(value, str)
        and re.fullmatch(f"[0-9a-fA-F]{{{length}}}", value)
        and int(value, 16)
    )


COUNT = _is_number(0, (1 << 32) - 1)
UINT64 = _is_number(0, (1 << 64) - 1)
VALUE: dict[str, Any] = {
    "stringValue": _is_text,
    "boolValue": _is_flag,
    "intValue": _is_number(-(1 << 63), (1 << 63) - 1),
    "doubleValue": _is_float,
    "bytesValue": _is_text,
}
VALUE["arrayValue"] = {"values": [VALUE]}
ATTRIBUTES: list[Check] = [{"key": _is_text, "value": VALUE}]
OF_ATTRIBUTES: dict[str, Any] = {"attributes": ATTRIBUTES, "droppedAttributesCount": COUNT}
CONTEXT: dict[str, Any] = {
    "traceId": _is_id(32),
    "spanId": _is_id(16),
    "traceState": _is_text,
    "flags": COUNT,
}
SPAN: Check = {
    **CONTEXT,
    **OF_ATTRIBUTES,
    "parentSpanId": _is_id(16),
    "name": _is_text,
    "kind": _is_number(0, 5),
    "startTimeUnixNano": UINT64,
    "endTimeUnixNano": UINT64,
    "events": [{**OF_ATTRIBUTES, "timeUnixNano": UINT64, "name": _is_text}],
    "droppedEventsCount": COUNT,
    "links": [{**CONTEXT, **OF_ATTRIBUTES}],
    "droppedLinksCount": COUNT,
    "status": {"message": _is_text, "code": _is_number(0, 2)},
}
SCOPE: Check = {
    "scope": {"name": _is_text, "version": _is_text, **OF_ATTRIBUTES},
    "spans": [SPAN],
    "schemaUrl": _is_text,
}
REQUEST: Check = {
    "resourceSpans": [{"resource": OF_ATTRIBUTES, "scopeSpans": [SCOPE], "schemaUrl": _is_text}]
}
