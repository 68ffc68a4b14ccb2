"""Spans to requests: what stands around the spans of one resource and scope, and how many of them go into one request.

    ExportTraceServiceRequest { ResourceSpans { resource, ScopeSpans { scope, span, span, ..., schema }, schema } }

A request has at most so many bytes before compression, because servers refuse larger ones; a span is never cut, so that one
which is larger by itself is a request of its own.
"""

from __future__ import annotations

import dataclasses
import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_recfn import _native
from otel_recfn.sinks.otlp.encoded import NO_SPANS, EncodedSpans
from otel_recfn.sinks.otlp.span_bytes import attribute_fields
from otel_recfn.sinks.otlp.wire import BYTES, field, text, varint

_RESOURCE_SPANS, _SCOPE_SPANS = 1 << 3 | BYTES, 2 << 3 | BYTES
"""How the two messages around spans begin."""
_MOST_LENGTH = 10
"""Bytes of a varint, and of a field's number before it, with room to spare."""


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """What is sent at once, again and again until somebody takes it."""

    body: bytes
    spans: int
    encoding: str = ""
    """How the body is compressed; empty where it isn't (yet)."""

    @property
    def size(self) -> int:
        """Bytes that it takes in memory."""
        return len(self.body)


class Envelope:
    """Of one resource and scope."""

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        of_scope = text(1, scope.name) + text(2, scope.version or "") + attribute_fields(3, scope.attributes)
        self._resource, self._scope = field(1, attribute_fields(1, resource.attributes)), field(1, of_scope)
        self._after_spans, self._after_scope = text(3, scope.schema_url or ""), text(3, resource.schema_url)
        parts = (self._resource, self._scope, self._after_spans, self._after_scope)
        self.size = sum([len(part) for part in parts]) + 2 * _MOST_LENGTH
        """Bytes around spans, at most."""

    def request(self, spans: list[bytes | memoryview], size: int) -> bytes:
        """The request with these spans, of ``size`` bytes, which are copied once."""
        of_scope = len(self._scope) + size + len(self._after_spans)
        head = varint(_SCOPE_SPANS) + varint(of_scope)
        of_resource = len(self._resource) + len(head) + of_scope + len(self._after_scope)
        before = (varint(_RESOURCE_SPANS), varint(of_resource), self._resource, head, self._scope)
        return _native.join_bytes([*before, *spans, self._after_spans, self._after_scope])


class RequestBuilder:
    """Fills one request.

    Args:
        envelope: around the spans.
        most_bytes: of a request.
    """

    def __init__(self, envelope: Envelope, most_bytes: int) -> None:
        self._envelope, self._most_bytes = envelope, most_bytes
        self._parts: list[bytes | memoryview] = []
        self._size = self._spans = 0
        self._since = 0.0

    @property
    def spans(self) -> int:
        """How many wait for the request to be full."""
        return self._spans

    def age(self) -> float:
        """Seconds since the first of them came; 0 where none has."""
        return time.monotonic() - self._since if self._spans else 0.0

    def fitting(self, spans: EncodedSpans) -> tuple[EncodedSpans, EncodedSpans]:
        """The first of them, which still fit, and the others; into an empty request one goes in any case."""
        fitting = spans.fitting(self._most_bytes - self._envelope.size - self._size)
        return spans.split(max(fitting, 0 if self._spans else 1)) if fitting < len(spans) else (spans, NO_SPANS)

    def add(self, spans: EncodedSpans) -> None:
        """Add what fits."""
        if not len(spans):
            return
        if not self._spans:
            self._since = time.monotonic()
        self._parts.append(spans.data)
        self._size += len(spans.data)
        self._spans += len(spans)

    def request(self) -> Request:
        """The request with all of them."""
        return Request(self._envelope.request(self._parts, self._size), self._spans)

    def next(self) -> RequestBuilder:
        """For the request after this one."""
        return RequestBuilder(self._envelope, self._most_bytes)
