"""What spans share, in bytes: the native encoder asks for each once in a call, and copies it from then on."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache

from opentelemetry.trace.status import Status, StatusCode

from otel_recfn.batches.input_lists import element_texts
from otel_recfn.model.batch import Batch, Track
from otel_recfn.sinks.otlp.span_bytes import attribute_fields, event_fields, status_field
from otel_recfn.sinks.spans.mapping import code_attributes, exception_attributes, stacktrace_attributes
from otel_recfn.support.json_text import text_of_utf8

SCOPES = 16
"""So many numbers of scopes a thread's begin apart."""
MAX_KEPT = 4096
SPAN_ATTRIBUTES, EVENT_ATTRIBUTES = 9, 3
"""The numbers of the fields."""


class Kind(IntEnum):
    """As ``native/otlp/otlp_fragments.hpp`` numbers them. Names it makes itself."""

    MODULE = 1
    SHAPES = 2
    DTYPES = 3
    CODE = 4
    EXCEPTION_EVENT = 5
    ERROR_STATUS = 6
    SCOPE_AND_THREAD = 7
    ERROR_TYPE = 8
    EXCEPTION_STACKTRACE = 9


class Fragments:
    """Of one batch.

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


@lru_cache(MAX_KEPT)
def _of_text(kind: int, raw: str) -> bytes:
    if kind == Kind.SHAPES:
        return attribute_fields(SPAN_ATTRIBUTES, {"recfn.input_shapes": element_texts(raw)})
    if kind == Kind.DTYPES:
        return attribute_fields(SPAN_ATTRIBUTES, {"recfn.input_dtypes": element_texts(raw)})
    text = text_of_utf8(raw)
    if kind == Kind.MODULE:
        return attribute_fields(SPAN_ATTRIBUTES, {"recfn.module": text})
    if kind == Kind.CODE:
        return attribute_fields(SPAN_ATTRIBUTES, code_attributes(text))
    if kind == Kind.ERROR_TYPE:
        return attribute_fields(SPAN_ATTRIBUTES, {"error.type": exception_attributes(text)["exception.type"]})
    if kind == Kind.EXCEPTION_STACKTRACE:
        return attribute_fields(EVENT_ATTRIBUTES, stacktrace_attributes(text))
    if kind == Kind.EXCEPTION_EVENT:
        return event_fields("exception", exception_attributes(text))
    return status_field(Status(StatusCode.ERROR, text))
