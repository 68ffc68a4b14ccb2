"""Spans as bytes, with the places where one may cut between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn.sinks.lost_places import NO_PLACES, Places
from otel_recfn.sinks.otlp.span_bytes import span_field
from otel_recfn.sinks.spans.place_of_span import place_of


class EncodedSpans(NamedTuple):
    """Fields of ScopeSpans, one after the other. Its length is the number of spans."""

    data: bytes | memoryview
    ends: NDArray[np.int64]
    """Where each span ends."""
    told: int = 0
    """Of how many losses the first of them tells."""
    places: Places = NO_PLACES
    """Where each would be lost."""

    def __len__(self) -> int:
        return len(self.ends)

    def telling(self, told: int) -> EncodedSpans:
        """The same, whose first one tells of so many losses."""
        return EncodedSpans(self.data, self.ends, told, self.places)

    def fitting(self, room: int) -> int:
        """How many of the first ones have so many bytes at most."""
        return int(np.searchsorted(self.ends, room, side="right"))

    def split(self, spans: int) -> tuple[EncodedSpans, EncodedSpans]:
        """The first so many, and the others."""
        at = int(self.ends[spans - 1]) if spans else 0
        told_first, told_then = (self.told, 0) if spans else (0, self.told)
        return self._part(slice(spans), slice(at), told_first, 0), self._part(
            slice(spans, None), slice(at, None), told_then, at
        )

    def _part(self, spans: slice, octets: slice, told: int, begin: int) -> EncodedSpans:
        return EncodedSpans(self.data[octets], self.ends[spans] - begin, told, self.places.part(spans))


def encoded(spans: Sequence[ReadableSpan] | EncodedSpans) -> EncodedSpans:
    """Spans that are objects as bytes."""
    if isinstance(spans, EncodedSpans):
        return spans
    fields = [span_field(span) for span in spans]
    ends = np.array(list(accumulate([len(each) for each in fields])), np.int64)
    places = Places(np.arange(len(spans)), [place_of(span) for span in spans].__getitem__)
    return EncodedSpans(b"".join(fields), ends, places=places)


NO_SPANS = EncodedSpans(b"", np.zeros(0, np.int64))
