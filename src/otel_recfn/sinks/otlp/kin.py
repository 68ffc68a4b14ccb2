"""Which spans there are, and which they lie in: as columns, and read from their bytes.

span { trace id (1), span id (2), [trace state (3)], [parent's span id (4)], ... }, in this order, as we encode it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.sinks.otlp.span_bytes import SPANS_OF_SCOPE
from otel_recfn.sinks.otlp.wire import field

Ids = NDArray[np.uint64]
Places = NDArray[np.int64]
NO_IDS: Ids = np.zeros(0, np.uint64)
_OF_A_TRACE = np.uint64(0x9E3779B97F4A7C15)
"""Odd: a range that is open for long has spans of one id in two traces."""
_LOW_HALF = (1 << 64) - 1
_TRACE_STATE, _PARENT = 0x1A, 0x22
_HALF_OF_TRACE, _SPAN_ID, _AFTER_SPAN_ID = 10, 20, 28
"""From where the span's fields begin."""
_ID_BYTES, _MOST_LENGTH_BYTES = 8, 5
_BYTES_OF_AN_ID = np.arange(_ID_BYTES)


class Kin(NamedTuple):
    """Of each of some spans, what it is known by, and what the one is known by that it lies in; 0 where it lies in none.

    Spans are known by their id, mixed with their trace's.
    """

    own: Ids
    above: Ids

    def part(self, which: slice | Places) -> Kin:
        """Of some of them."""
        return Kin(self.own[which], self.above[which])


NO_KIN = Kin(NO_IDS, NO_IDS)


def kin_in(trace_ids: Sequence[int], trace: NDArray[np.integer], span_ids: Ids, above_ids: Ids) -> Kin:
    """Of spans in these traces, each in the one of its number."""
    halves = np.array([trace_id & _LOW_HALF for trace_id in trace_ids], np.uint64)
    return _kin(halves[trace], span_ids, above_ids)


def _kin(half_of_trace: Ids, span_ids: Ids, above_ids: Ids) -> Kin:
    mixed = half_of_trace * _OF_A_TRACE
    return Kin(span_ids ^ mixed, np.where(above_ids != 0, above_ids ^ mixed, np.uint64(0)))


class Read(NamedTuple):
    """Of each span, what its bytes say."""

    kin: Kin
    above_ids: Ids
    above_at: Places
    """Where the id stands of the one that it lies in; -1 where it lies in none."""


def read_kin(body: bytes | bytearray | memoryview, ends: Places) -> Read:
    """Of spans one after the other, with their ends."""
    octets = np.frombuffer(body, np.uint8)
    begins = _begins_of_fields(octets, np.append(np.int64(0), ends)[:-1])
    at = _after_trace_state(octets, begins + _AFTER_SPAN_ID)
    inner = octets[at] == _PARENT
    above_at, above_ids = np.where(inner, at + 2, -1), np.zeros(len(ends), np.uint64)
    above_ids[inner] = _ids(octets, above_at[inner])
    return Read(_kin(_ids(octets, begins + _HALF_OF_TRACE), _ids(octets, begins + _SPAN_ID), above_ids), above_ids, above_at)


def _ids(octets: NDArray[np.uint8], at: Places) -> Ids:
    ids: Ids = octets[at[:, None] + _BYTES_OF_AN_ID].view(">u8")[:, 0].astype(np.uint64)
    return ids


def _begins_of_fields(octets: NDArray[np.uint8], starts: Places) -> Places:
    """Behind the field's number and its length."""
    begins, longer = starts + 2, octets[starts + 1] >= 0x80
    for _ in range(_MOST_LENGTH_BYTES):
        if not longer.any():
            break
        begins = begins + longer
        longer = longer & (octets[begins - 1] >= 0x80)
    return begins


def _after_trace_state(octets: NDArray[np.uint8], at: Places) -> Places:
    has_state = octets[at] == _TRACE_STATE
    if not has_state.any():
        return at
    low, middle, high = [octets[at + place].astype(np.int64) for place in (1, 2, 3)]
    of_two, of_three = (low & 0x7F) + (middle << 7), (low & 0x7F) + ((middle & 0x7F) << 7) + (high << 14)
    size = np.where(low < 0x80, 2 + low, np.where(middle < 0x80, 3 + of_two, 4 + of_three))
    return np.where(has_state, at + size, at)


def in_another(span: bytes | memoryview, above_at: int, above_id: int) -> bytes:
    """The field of one span, which lies in this one; in none where that is 0.

    Args:
        span: it.
        above_at: where the id stands of the one that it lies in.
        above_id: another id.
    """
    body = bytes(span)
    if above_id:
        return body[:above_at] + above_id.to_bytes(_ID_BYTES, "big") + body[above_at + _ID_BYTES :]
    begin = int(_begins_of_fields(np.frombuffer(body, np.uint8), np.zeros(1, np.int64))[0])
    return field(SPANS_OF_SCOPE, body[begin : above_at - 2] + body[above_at + _ID_BYTES :])
