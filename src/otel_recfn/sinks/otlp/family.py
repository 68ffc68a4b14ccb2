"""What may be dropped of requests so that no span that arrives lacks its parent: as ``batches/gaps.py``, for encoded spans.

* Of a request that has to go, the spans are kept that others lie in which were sent, are being sent, or are kept themselves.
* A later span that lies in a dropped one goes up to the nearest one around it that was not dropped, or to the top.

Memory is bounded, so the oldest of both are forgotten.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in, is_in_ordered
from otel_recfn.batches.remembered import Remembered, by_id
from otel_recfn.sinks.lost_places import with_more
from otel_recfn.sinks.otlp.envelope import MOST_PLACES_OF_A_REQUEST, Parts, Request, made_of
from otel_recfn.sinks.otlp.kin import NO_IDS, Ids, Kin, in_another, read_kin

MOST_AWAITED, MOST_DROPPED, SPANS_AT_ONCE = 1 << 16, 1 << 17, 1 << 16
ANY_HEADER = zlib.MAX_WBITS | 32
"""zlib's way to find out what a body was compressed with."""


class Family:
    """Of one destination. Used under a lock of the caller's."""

    def __init__(self) -> None:
        self._awaited: Ids = NO_IDS
        """What spans that were sent lie in and that was not sent; the newest first. Most are the program's own spans."""
        self._unsummed: list[Kin] = []
        """Of spans that were sent since that was looked at."""
        self._dropped = Remembered(MOST_DROPPED, columns=3)
        """Dropped spans, each with what it lay in, and the id of that."""
        self._has_dropped = False

    def sent(self, request: Request) -> None:
        """Somebody has taken it."""
        if request.parts is None:
            return
        self._unsummed.append(request.parts.kin)
        if sum([len(kin.own) for kin in self._unsummed]) > SPANS_AT_ONCE:
            self._sum_up()

    def _sum_up(self) -> None:
        if self._unsummed:
            own, above = [np.sort(np.concatenate(column)) for column in zip(*self._unsummed, strict=True)]
            newly = distinct(above[above != 0])
            still = np.concatenate([newly[~is_in_ordered(newly, own)], self._awaited[~is_in_ordered(self._awaited, own)]])
            self._awaited, self._unsummed = still[:MOST_AWAITED], []

    def reduced(self, request: Request, kept: Iterable[Request]) -> Request | None:
        """What must not be missing of a request that is dropped; None where nothing must.

        Args:
            request: it.
            kept: requests whose spans may arrive, beside those that were sent.
        """
        parts = request.parts
        if parts is None:
            return None
        self._sum_up()
        around = [each.parts.kin.above for each in kept if each.parts is not None]
        is_kept = is_in(parts.kin.own, np.concatenate([self._awaited, *around]))
        self._drop(request, parts, ~is_kept)
        places = np.flatnonzero(is_kept)
        return self._with_others_around(request, parts, places) if len(places) else None

    def lost(self, request: Request) -> None:
        """Nobody takes it, and nothing of it."""
        if request.parts is not None:
            self._drop(request, request.parts, np.ones(request.spans, np.bool_))

    def mended(self, request: Request) -> Request:
        """The request with what was dropped taken out of the tree: itself, where it has nothing to do with that."""
        parts = request.parts
        if parts is None or not self._has_dropped or not self._dropped.find(parts.kin.above)[0].any():
            return request
        return self._with_others_around(request, parts, np.arange(request.spans))

    def _drop(self, request: Request, parts: Parts, which: NDArray[np.bool_]) -> None:
        read = read_kin(_spans_of(request, parts), parts.ends)
        self._has_dropped = True
        self._dropped.add(by_id(parts.kin.own[which], parts.kin.above[which], read.above_ids[which]))

    def _with_others_around(self, request: Request, parts: Parts, places: NDArray[np.int64]) -> Request:
        """Of a request so many of its spans, which lie in what was not dropped of what they lay in."""
        spans = memoryview(_spans_of(request, parts))
        read = read_kin(spans, parts.ends)
        above, above_ids = self._nearest(parts.kin.above[places], read.above_ids[places])
        found = _fields(spans, parts.ends, places)
        for number in np.flatnonzero(above != parts.kin.above[places]).tolist():
            place = int(places[number])
            begin = int(parts.ends[place - 1]) if place else 0
            found[number] = in_another(found[number], int(read.above_at[place]) - begin, int(above_ids[number]))
        tells = {number: parts.tells[place] for number, place in enumerate(places.tolist()) if place in parts.tells}
        kin, ends = Kin(parts.kin.own[places], above), np.cumsum([len(each) for each in found])
        made = made_of(parts.envelope, found, ends, kin, tells)
        return replace(made, told=sum(tells.values()), places=request.places, is_needed=request.is_needed)

    def _nearest(self, above: Ids, above_ids: Ids) -> tuple[Ids, Ids]:
        while True:
            found, (further, further_ids) = self._dropped.find(above)
            if not found.any():
                return above, above_ids
            above, above_ids = np.where(found, further, above), np.where(found, further_ids, above_ids)


def joined(first: Request, then: Request, most_bytes: int) -> Request | None:
    """Both as one of so many bytes at most before compression, if they have the same envelope."""
    if first.parts is None or then.parts is None or first.parts.envelope is not then.parts.envelope:
        return None
    one, other = first.parts, then.parts
    if one.envelope.size + int(one.ends[-1] + other.ends[-1]) > most_bytes:
        return None
    spans: list[bytes | memoryview] = [_spans_of(first, one), _spans_of(then, other)]
    ends = np.concatenate([one.ends, one.ends[-1] + other.ends])
    kin = Kin(np.concatenate([one.kin.own, other.kin.own]), np.concatenate([one.kin.above, other.kin.above]))
    tells = {**one.tells, **{first.spans + place: told for place, told in other.tells.items()}}
    places = with_more(first.places, then.places, MOST_PLACES_OF_A_REQUEST)
    return replace(made_of(one.envelope, spans, ends, kin, tells), told=first.told + then.told, places=places, is_needed=True)


def _whole(request: Request) -> bytes:
    return zlib.decompress(request.body, ANY_HEADER) if request.encoding else request.body


def _spans_of(request: Request, parts: Parts) -> bytes:
    body = _whole(request)
    return body[parts.begin : parts.begin + int(parts.ends[-1])]


def _fields(spans: memoryview, ends: NDArray[np.int64], places: NDArray[np.int64]) -> list[bytes | memoryview]:
    begins = np.append(np.int64(0), ends)[places].tolist()
    return [spans[begin:end] for begin, end in zip(begins, ends[places].tolist(), strict=True)]
