"""What is said of the ranges that were folded into one span, as attributes: how many, how long, which names took most of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from otel_recfn.batches.fold.told import Told
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.support.json_text import text_of_utf8

FOLDED_COUNT = "recfn.folded.count"
"""The attribute of a span that tells how many ranges were folded into it."""

Attributes = dict[str, AttributeValue]


def sums_of(told: Told, place: int, names: Sequence[str]) -> Attributes:
    """The attributes of a span.

    Args:
        told: of many spans.
        place: of its sums there.
        names: by number.
    """
    of_it = slice(int(told.top_end[place - 1]) if place else 0, int(told.top_end[place]))
    columns = [column[of_it].tolist() for column in (told.top_name, told.top_count, told.top_self_ns)]
    top = [
        f"{text_of_utf8(names[name])}: {count} x, {self_ns / 1e6:.3f} ms" for name, count, self_ns in zip(*columns, strict=True)
    ]
    ranges, duration_ns = int(told.ranges[place]), int(told.duration_ns[place])
    return {FOLDED_COUNT: ranges, "recfn.folded.duration_ns": duration_ns, "recfn.folded.top": top}


class ToldOfKept(Mapping[int, Attributes]):
    """Attributes of kept ranges, by their place; made when they are asked for.

    Args:
        told: what is told.
        names: by number.
    """

    def __init__(self, told: Told, names: Sequence[str]) -> None:
        self._told, self._names = told, names
        self._places = dict(zip(told.holder.tolist(), range(len(told.holder)), strict=True))
        self._places.pop(-1, None)  # the units' own

    def __getitem__(self, kept: int) -> Attributes:
        return sums_of(self._told, self._places[kept], self._names)

    def __contains__(self, kept: object) -> bool:
        return kept in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
