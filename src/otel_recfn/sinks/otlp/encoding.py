"""Spans as bytes. The native encoder makes those of plans, from columns; the official one the few that are objects, and what
spans share.

plan ──► native/otlp ◄── Fragments: what spans share ◄─┐
             │                                         official encoder
             ▼                                         │
        EncodedSpans ◄── roots, sums, hooked, cut ◄────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext
from opentelemetry.trace.status import Status, StatusCode

from otel_recfn import _native
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.columns import BY_SIZE
from otel_recfn.sinks.spans.mapping import (
    MAX_KEPT_BASES,
    NOTHING_TOLD,
    SpanMapper,
    code_attributes,
    exception_attributes,
    stacktrace_attributes,
    text_value,
)
from otel_recfn.sinks.spans.provider import AttributeValue, SpanTarget
from otel_recfn.support.span_ids import current_key
from otel_recfn.support.texts import text_of_utf8

Attributes = Mapping[str, AttributeValue]
SCOPES = 16
"""So many numbers of scopes a thread's begin apart."""
MAX_KEPT_TEXTS = 4096
MESSAGES_AT_ONCE = 512
NO_RESOURCE = Resource({})


class EncodedSpans(NamedTuple):
    """Fields of ScopeSpans, one after the other. Its length is the number of spans."""

    data: bytes | memoryview
    ends: NDArray[np.int64]
    """Where each span ends."""

    def __len__(self) -> int:
        return len(self.ends)

    def fitting(self, room: int) -> int:
        """How many of the first ones have so many bytes at most."""
        return int(np.searchsorted(self.ends, room, side="right"))

    def split(self, spans: int) -> tuple[EncodedSpans, EncodedSpans]:
        """The first so many, and the others."""
        at = int(self.ends[spans - 1]) if spans else 0
        first = EncodedSpans(self.data[:at], self.ends[:spans])
        return first, EncodedSpans(self.data[at:], self.ends[spans:] - at)


def encoded(spans: Sequence[ReadableSpan] | EncodedSpans) -> EncodedSpans:
    """Spans of one resource and scope as bytes."""
    if isinstance(spans, EncodedSpans):
        return spans
    fields = [ScopeSpans(spans=[message]).SerializeToString() for message in _messages(spans)]
    return EncodedSpans(b"".join(fields), np.array(list(accumulate(map(len, fields))), np.int64))


def _messages(spans: Sequence[ReadableSpan]) -> Iterator[Span]:
    """The official encoder's, a few at a time: they are large."""
    for first in range(0, len(spans), MESSAGES_AT_ONCE):
        for resource in encode_spans(spans[first : first + MESSAGES_AT_ONCE]).resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def span_with(resource: Resource = NO_RESOURCE, **parts: Any) -> ReadableSpan:
    """A span of which only these parts are of use."""
    return ReadableSpan("", SpanContext(1, 1, False), resource=resource, start_time=0, end_time=0, **parts)


def attribute_fields(of_spans: Sequence[Attributes]) -> list[bytes]:
    """The attributes of each as fields of a span."""
    messages = _messages([span_with(attributes=attributes) for attributes in of_spans])
    return [Span(attributes=message.attributes).SerializeToString() for message in messages]


def _span_fields(attributes: Attributes) -> bytes:
    return attribute_fields([attributes])[0]


def _event_fields(name: str, attributes: Attributes) -> bytes:
    """What follows an event's time."""
    (message,) = _messages([span_with(events=[Event(name, attributes, timestamp=0)])])
    return bytes(message.events[0].SerializeToString())


def _status_field(status: Status) -> bytes:
    (message,) = _messages([span_with(status=status)])
    return bytes(Span(status=message.status).SerializeToString())


class Kind(IntEnum):
    """As ``native/otlp/otlp_fragments.hpp`` numbers what it asks for. Names it makes itself."""

    CODE = 1
    EXCEPTION_EVENT = 2
    ERROR_STATUS = 3
    SCOPE_AND_THREAD = 4
    ERROR_TYPE = 5
    EXCEPTION_STACKTRACE = 6
    FIRST_TEXT = 7
    """Of a column's attribute; those of the other texts follow."""


TEXTS = [column for column in BY_SIZE if column.value is str]


class Fragments:
    """What the spans of one batch share, in bytes: the native encoder asks for each once in a call, and copies it from then on.

    Args:
        batch: its names and tracks are what is asked for.
        base: the attributes that all ranges of a scope in a thread share.
    """

    def __init__(self, batch: Batch, base: Callable[[int, Track], bytes]) -> None:
        self._batch, self._base = batch, base

    def __call__(self, kind: int, index: int) -> bytes:
        """Of a name, or of a scope in a thread."""
        if kind == Kind.SCOPE_AND_THREAD:
            thread, scope = divmod(index, SCOPES)
            return self._base(scope, self._batch.tracks[thread])
        return _of_text(kind, self._batch.names[index])


@lru_cache(MAX_KEPT_TEXTS)
def _of_text(kind: int, raw: str) -> bytes:
    if kind >= Kind.FIRST_TEXT:
        column = TEXTS[kind - Kind.FIRST_TEXT]
        return _span_fields({column.attribute: text_value(column, raw)})
    text = text_of_utf8(raw)
    if kind == Kind.CODE:
        return _span_fields(code_attributes(text))
    if kind == Kind.ERROR_TYPE:
        return _span_fields({"error.type": exception_attributes(text)["exception.type"]})
    if kind == Kind.EXCEPTION_STACKTRACE:
        return _event_fields("", stacktrace_attributes(text))
    if kind == Kind.EXCEPTION_EVENT:
        return _event_fields("exception", exception_attributes(text))
    return _status_field(Status(StatusCode.ERROR, text))


class OtlpMapper(SpanMapper):
    """Encodes spans for one target. What its limits cut goes by way of the SDK's spans, which are cut already."""

    def __init__(self, target: SpanTarget) -> None:
        super().__init__(target)
        self._base_fields: dict[tuple[int, Track], bytes] = {}

    def spans(self, plan: SpanPlan, told: Mapping[int, Attributes] = NOTHING_TOLD) -> EncodedSpans:  # type: ignore[override]
        """The spans of a plan, in its order.

        Args:
            plan: the plan.
            told: further attributes, by row.
        """
        if not self._limits.unbound:
            return encoded(super().spans(plan, told))
        columns = (plan.row, plan.parent, plan.above, plan.linked_id, plan.linked_above)
        above = [_above(span) for span in plan.spans_above]
        rows = [row for row in plan.row.tolist() if row in told] if told else []
        further = dict(zip(rows, attribute_fields([told[row] for row in rows]), strict=True))
        fragments = Fragments(plan.batch, self._fields_of)
        made: Any = _native.encode_otlp_spans(plan.batch, columns, above, current_key(), fragments, further)
        data, ends = made
        return EncodedSpans(memoryview(data), np.frombuffer(ends, np.int64))

    def _fields_of(self, scope: int, thread: Track) -> bytes:
        found = self._base_fields.get((scope, thread))
        if found is None:
            if len(self._base_fields) >= MAX_KEPT_BASES:
                self._base_fields.clear()
            found = self._base_fields[scope, thread] = _span_fields(self.base(scope, thread))
        return found


def _above(span: SpanContext) -> tuple[bytes, bytes, int]:
    """What the spans below it have of it: the trace's id and state, and its own id as theirs."""
    state = span.trace_state.to_header() if span.trace_state else ""
    return span.trace_id.to_bytes(16, "big"), Span(trace_state=state).SerializeToString(), span.span_id
