"""Two readings of what is current, and what a row says of one."""

from __future__ import annotations

from otel_recfn.model.batch import SpanContextRef
from otel_recfn.recording.types import ContextReading

FIRST = ContextReading(trace_id=(1 << 127) + 5, span_id=(1 << 63) + 7, flags=1, enclosing=0)
SECOND = ContextReading(trace_id=3, span_id=4, flags=0, enclosing=0)


def ref(reading: ContextReading) -> SpanContextRef:
    return SpanContextRef(reading.trace_id, reading.span_id, reading.flags)
