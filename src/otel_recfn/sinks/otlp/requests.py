"""Encoded spans to requests: what stands around the spans of one resource and scope, and how many go into one request.

    ExportTraceServiceRequest { ResourceSpans { resource, ScopeSpans { scope, span, span, ..., schema }, schema } }

A request has at most so many bytes before compression, because servers refuse larger ones; a span is never cut, so that one
which is larger by itself is a request of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_recfn.sinks.otlp.encoding import EncodedSpans, span_with
from otel_recfn.support.processes import LOCAL_RANK, RANK, WORLD_SIZE, number_of

NUMBERS = {"recfn.rank": RANK, "recfn.local_rank": LOCAL_RANK, "recfn.world_size": WORLD_SIZE}
"""Variables by attribute."""
JOB_ID, JOBS = "recfn.job_id", ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
NO_JOB = ("", "none")
"""What torchrun says where nobody gave a run an id."""
_RESOURCE_SPANS, _SCOPE_SPANS = b"\x0a", b"\x12"
"""How the two messages around spans begin: numbers 1 and 2, of fields with a length."""
_MOST_LENGTH = 10
"""Bytes of a length, and of a field's number before it, with room to spare."""
_NO_SPANS = EncodedSpans(b"", np.zeros(0, np.int64))


def with_launch(resource: Resource, environment: Mapping[str, str] | None = None) -> Resource:
    """The resource with what a launcher (torchrun, SLURM) says of this process and the resource doesn't."""
    found = os.environ if environment is None else environment
    told: dict[str, int | str | None] = {name: number_of(variables, found) for name, variables in NUMBERS.items()}
    told[JOB_ID] = next(filter(None, [found.get(each, "") for each in JOBS if found.get(each, "") not in NO_JOB]), None)
    known = {name: value for name, value in told.items() if value is not None and name not in resource.attributes}
    return Resource({**resource.attributes, **known}, resource.schema_url) if known else resource


class Request(NamedTuple):
    """What is sent at once, again and again until somebody takes it."""

    body: bytes
    spans: int

    @property
    def size(self) -> int:
        """Bytes that it takes in memory."""
        return len(self.body)


class Envelope:
    """Of one resource and scope."""

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        (of_resource,) = encode_spans([span_with(resource, instrumentation_scope=scope)]).resource_spans
        (of_scope,) = of_resource.scope_spans
        self._resource = ResourceSpans(resource=of_resource.resource).SerializeToString()
        self._scope = ScopeSpans(scope=of_scope.scope).SerializeToString()
        self._after_spans = ScopeSpans(schema_url=of_scope.schema_url).SerializeToString()
        self._after_scope = ResourceSpans(schema_url=of_resource.schema_url).SerializeToString()
        parts = (self._resource, self._scope, self._after_spans, self._after_scope)
        self.size = sum(map(len, parts)) + 2 * _MOST_LENGTH
        """Bytes around spans, at most."""

    def request(self, spans: list[bytes | memoryview], size: int) -> bytes:
        """The request with these spans, of ``size`` bytes, which are copied once."""
        of_scope = len(self._scope) + size + len(self._after_spans)
        head = _SCOPE_SPANS + _varint(of_scope)
        of_resource = len(self._resource) + len(head) + of_scope + len(self._after_scope)
        before = (_RESOURCE_SPANS, _varint(of_resource), self._resource, head, self._scope)
        return b"".join([*before, *spans, self._after_spans, self._after_scope])


def _varint(length: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the eighth."""
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*encoded, length])


class RequestBuilder:
    """Fills one request after the other.

    Args:
        envelope: around the spans.
        most_bytes: of a request.
    """

    def __init__(self, envelope: Envelope, most_bytes: int) -> None:
        self._envelope, self._room = envelope, most_bytes - envelope.size
        self._parts: list[bytes | memoryview] = []
        self._size, self._since = 0, 0.0
        self.spans = 0
        """How many wait for the request to be full."""

    def age(self) -> float:
        """Seconds since the first of them came; 0 where none has."""
        return time.monotonic() - self._since if self.spans else 0.0

    def add(self, spans: EncodedSpans) -> EncodedSpans:
        """Add those that fit, and return the others; to an empty request one is added in any case."""
        fitting = spans.fitting(self._room - self._size)
        rest = _NO_SPANS
        if fitting < len(spans):
            spans, rest = spans.split(max(fitting, 0 if self.spans else 1))
        if len(spans):
            self._since = self._since if self.spans else time.monotonic()
            self._parts.append(spans.data)
            self._size += len(spans.data)
            self.spans += len(spans)
        return rest

    def take(self) -> Request:
        """The request with all of them; the next one is filled from now on."""
        request = Request(self._envelope.request(self._parts, self._size), self.spans)
        self._parts, self._size, self.spans = [], 0, 0
        return request
