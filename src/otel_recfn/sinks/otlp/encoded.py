"""Spans as bytes, with the places where one may cut between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.sinks.otlp.span_bytes import span_field


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
    """Spans that are objects as bytes."""
    if isinstance(spans, EncodedSpans):
        return spans
    fields = [span_field(span) for span in spans]
    return EncodedSpans(b"".join(fields), np.array(list(accumulate(len(each) for each in fields)), np.int64))


NO_SPANS = EncodedSpans(b"", np.zeros(0, np.int64))
