"""Spans as bytes, and as requests.

The native encoder makes them from plans; the official one the few others, and shared parts.

    plan ──► native/otlp ◄── what spans share ◄────────────┐
                 │                                         official encoder
                 ▼                                         │
            EncodedSpans ◄── roots, sums, hooked, cut ◄────┘
                 │
                 ▼
    ExportTraceServiceRequest { ResourceSpans { resource, ScopeSpans { scope, span, span, ...,
    schema }, schema } }

A request has at most so many bytes before compression, because servers refuse larger ones; a span
is never cut, so that one which is larger by itself is a request of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.trace.status import Status, StatusCode

from otel_recfn import _native
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.columns import BY_SIZE
from otel_recfn.sinks.spans.mapping import NO_ATTRIBUTES, SpanMapper
from otel_recfn.sinks.spans.range_attributes import (
    base_attributes,
    code_attributes,
    text_attributes,
)
from otel_recfn.sinks.spans.span_limits import AttributeValue
from otel_recfn.support.exceptions import exception_attributes, stacktrace_attributes
from otel_recfn.support.processes import LOCAL_RANK, RANK, WORLD_SIZE, number_in_environment
from otel_recfn.support.span_ids import current_key
from otel_recfn.support.texts import utf8_text

Attributes = Mapping[str, AttributeValue]
SCOPES = 16
"""The factor that keeps scopes and threads apart in one number."""
MAX_CACHED_TEXTS = 4096
MESSAGES_AT_ONCE = 512
NO_RESOURCE = Resource({})
NUMBERS = {"recfn.rank": RANK, "recfn.local_rank": LOCAL_RANK, "recfn.world_size": WORLD_SIZE}
"""The environment variables of numbers, by attribute."""
_RESOURCE_SPANS, _SCOPE_SPANS = b"\x0a", b"\x12"
"""The field headers of the two messages around spans: numbers 1 and 2, with a length."""
_MAX_LENGTH = 10
"""The most bytes of a length and the field's number before it, with room to spare."""


class EncodedSpans(NamedTuple):
    """Spans as fields of ScopeSpans, one after the other. Its length is the number of spans."""

    data: bytes | memoryview
    ends: NDArray[np.int64]
    """The end of each span."""

    def __len__(self) -> int:
        return len(self.ends)


def as_encoded(spans: Sequence[ReadableSpan] | EncodedSpans) -> EncodedSpans:
    """Spans of one resource and scope as bytes."""
    if isinstance(spans, EncodedSpans):
        return spans
    fields = [ScopeSpans(spans=[message]).SerializeToString() for message in _messages(spans)]
    return EncodedSpans(b"".join(fields), np.array(list(accumulate(map(len, fields))), np.int64))


def _messages(spans: Sequence[ReadableSpan]) -> Iterator[Span]:
    """Messages of the official encoder for a few spans at a time, since they are large."""
    for first in range(0, len(spans), MESSAGES_AT_ONCE):
        for resource in encode_spans(spans[first : first + MESSAGES_AT_ONCE]).resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def span_with(resource: Resource = NO_RESOURCE, **parts: Any) -> ReadableSpan:
    """A span of which only these parts are used."""
    return ReadableSpan(
        "", SpanContext(1, 1, False), resource=resource, start_time=0, end_time=0, **parts
    )


def attribute_fields(span_attributes: Sequence[Attributes]) -> list[bytes]:
    """The attributes of each span as fields."""
    messages = _messages([span_with(attributes=attributes) for attributes in span_attributes])
    return [Span(attributes=message.attributes).SerializeToString() for message in messages]


def _span_fields(attributes: Attributes) -> bytes:
    return attribute_fields([attributes])[0]


def _event_fields(name: str, attributes: Attributes) -> bytes:
    """The fields after an event's time."""
    (message,) = _messages([span_with(events=[Event(name, attributes, timestamp=0)])])
    return bytes(message.events[0].SerializeToString())


def _status_field(status: Status) -> bytes:
    (message,) = _messages([span_with(status=status)])
    return bytes(Span(status=message.status).SerializeToString())


class FragmentKind(IntEnum):
    """The kinds of fragments that spans share, numbered as in
    ``native/otlp/otlp_fragments.hpp``; names need none.
    """

    CODE = 1
    EXCEPTION_EVENT = 2
    ERROR_STATUS = 3
    SCOPE_AND_THREAD = 4
    ERROR_TYPE = 5
    EXCEPTION_STACKTRACE = 6
    FIRST_TEXT = 7
    """The kind of the first column with a text; those of other columns follow."""


TEXTS = [column for column in BY_SIZE if column.value is str]


@lru_cache(MAX_CACHED_TEXTS)
def _text_fields(kind: int, raw: str) -> bytes:
    if kind >= FragmentKind.FIRST_TEXT:
        return _span_fields(text_attributes(TEXTS[kind - FragmentKind.FIRST_TEXT], raw))
    text = utf8_text(raw)
    if kind == FragmentKind.CODE:
        return _span_fields(code_attributes(text))
    if kind == FragmentKind.ERROR_TYPE:
        return _span_fields({"error.type": exception_attributes(text)["exception.type"]})
    if kind == FragmentKind.EXCEPTION_STACKTRACE:
        return _event_fields("", stacktrace_attributes(text))
    if kind == FragmentKind.EXCEPTION_EVENT:
        return _event_fields("exception", exception_attributes(text))
    return _status_field(Status(StatusCode.ERROR, text))


@lru_cache(MAX_CACHED_TEXTS)
def _thread_fields(scope: int, thread: Track) -> bytes:
    return _span_fields(base_attributes(scope, thread))


class OtlpMapper(SpanMapper):
    """An encoder of spans for one target. Spans that its limits cut are made by the SDK first."""

    def spans(  # type: ignore[override]
        self, plan: SpanPlan, extra_attributes: Mapping[int, Attributes] = NO_ATTRIBUTES
    ) -> EncodedSpans:
        if not self._limits.unbound:
            return as_encoded(super().spans(plan, extra_attributes))
        plan = plan.named(extra_attributes)
        parents = [_parent_fields(span) for span in plan.parent_spans]
        rows = (
            [row for row in plan.row.tolist() if row in extra_attributes]
            if extra_attributes
            else []
        )
        fields_by_row = dict(
            zip(rows, attribute_fields([extra_attributes[row] for row in rows]), strict=True)
        )
        made: Any = _native.encode_otlp_spans(
            plan,
            parent_span=parents,
            key=current_key(),
            fragment=partial(self._fragment, plan.batch),
            extra_fields=fields_by_row,
        )
        data, ends = made
        return EncodedSpans(memoryview(data), np.frombuffer(ends, np.int64))

    def _fragment(self, batch: Batch, kind: int, index: int) -> bytes:
        """The bytes that spans share: the native encoder asks for each once in a call, and copies
        it from then on.

        ``index`` is that of a name, or of a scope in a thread.
        """
        if kind != FragmentKind.SCOPE_AND_THREAD:
            return _text_fields(kind, batch.names[index])
        number, scope = divmod(index, SCOPES)
        return _thread_fields(scope, batch.tracks[number])


def _parent_fields(span: SpanContext) -> tuple[bytes, bytes, int]:
    """The part of the span above that spans below it have: the trace's id and state, and its id
    as their parent's.
    """
    state = span.trace_state.to_header() if span.trace_state else ""
    return (
        span.trace_id.to_bytes(16, "big"),
        Span(trace_state=state).SerializeToString(),
        span.span_id,
    )


def with_launch(resource: Resource) -> Resource:
    """The resource with what a launcher (torchrun, SLURM) says of this process, unless the
    resource says it.
    """
    numbers = {
        name: number
        for name, variables in NUMBERS.items()
        if (number := number_in_environment(variables)) is not None
    }
    return Resource({**numbers, **resource.attributes}, resource.schema_url)


class Request(NamedTuple):
    """A request, which is sent again and again until it is taken."""

    body: bytes
    spans: int


class RequestBuilder:
    """A builder that fills one request after the other with spans of one resource and scope."""

    def __init__(self, resource: Resource, scope: InstrumentationScope, max_bytes: int) -> None:
        (resource_spans,) = encode_spans(
            [span_with(resource, instrumentation_scope=scope)]
        ).resource_spans
        (scope_spans,) = resource_spans.scope_spans
        self._resource = ResourceSpans(resource=resource_spans.resource).SerializeToString()
        self._scope = ScopeSpans(scope=scope_spans.scope).SerializeToString()
        self._after_spans = ScopeSpans(schema_url=scope_spans.schema_url).SerializeToString()
        self._after_scope = ResourceSpans(schema_url=resource_spans.schema_url).SerializeToString()
        envelope = (self._resource, self._scope, self._after_spans, self._after_scope)
        self._room = max_bytes - sum(map(len, envelope)) - 2 * _MAX_LENGTH
        self._parts: list[bytes | memoryview] = []
        self._size, self._since = 0, 0.0
        self.spans = 0
        """The number of spans in the request."""

    def age(self) -> float:
        """The seconds since the first span came; 0 without any."""
        return time.monotonic() - self._since if self.spans else 0.0

    def add(self, spans: EncodedSpans) -> EncodedSpans:
        """Add the spans that fit, and return the others; an empty request takes at least one."""
        fitting = max(
            int(np.searchsorted(spans.ends, self._room - self._size, side="right")),
            0 if self.spans else 1,
        )
        if not len(spans) or not fitting:
            return spans
        cut = int(spans.ends[:fitting][-1])
        others = EncodedSpans(spans.data[cut:], spans.ends[fitting:] - cut)
        self._since = self._since if self.spans else time.monotonic()
        self._parts.append(spans.data[:cut])
        self._size += cut
        self.spans += len(spans) - len(others)
        return others

    def take(self) -> Request:
        """The request, whose bytes are copied once; the next one is filled from now on."""
        scope_length = len(self._scope) + self._size + len(self._after_spans)
        head = _SCOPE_SPANS + _varint(scope_length)
        resource_length = len(self._resource) + len(head) + scope_length + len(self._after_scope)
        before = (_RESOURCE_SPANS, _varint(resource_length), self._resource, head, self._scope)
        body = b"".join([*before, *self._parts, self._after_spans, self._after_scope])
        request = Request(body, self.spans)
        self._parts, self._size, self.spans = [], 0, 0
        return request


def _varint(length: int) -> bytes:
    """A number with seven bits a byte, the lowest first; all but the last byte have the eighth
    bit.
    """
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*encoded, length])
