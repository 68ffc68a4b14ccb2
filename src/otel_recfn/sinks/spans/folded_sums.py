"""What is said of the ranges that were folded into one span: how many, how long, and which names took most of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.fold.finished import FinishedUnits, Places
from otel_recfn.batches.fold.folded import OTHER
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.support.json_text import text_of_utf8

TOP_NAMES = 3
FOLDED_COUNT = "recfn.folded.count"
"""The attribute of a span that tells how many ranges were folded into it."""

Attributes = dict[str, AttributeValue]


class Holder(NamedTuple):
    """A kept range, or a unit, that ranges were folded into."""

    unit: int
    holder: int
    """As ``FinishedUnits.path_holder``."""
    longest: int
    """Of the paths that lie directly in it, the one with the most time."""
    ranges: int
    """How many were folded into it."""
    attributes: Attributes


class _Names(NamedTuple):
    """Sums of the paths of a name in a holder: columns, by holder and then by time, the most first."""

    begin: list[int]
    """Where those of each holder begin, and where all end."""
    name: list[int]
    ranges: list[int]
    self_ns: list[int]


def holders(done: FinishedUnits, names: Sequence[str]) -> list[Holder]:
    """All that ranges were folded into, in the order of their paths.

    Args:
        done: what became of units.
        names: by number.
    """
    if not len(done.path_unit):
        return []
    changes = (np.diff(done.path_unit) != 0) | (np.diff(done.path_holder) != 0)
    first = np.flatnonzero(np.append(True, changes))
    holder = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(done.path_unit))))
    outermost = np.where(done.path_above < 0, done.path_total_ns, 0)
    top = _names_of(done, holder)
    return [
        Holder(unit, number, longest, count, _attributes(count, total, _top(top, place, names)))
        for place, (unit, number, longest, count, total) in enumerate(
            zip(
                done.path_unit[first].tolist(),
                done.path_holder[first].tolist(),
                _longest(done, holder, first).tolist(),
                np.add.reduceat(done.path_count, first).tolist(),
                np.add.reduceat(outermost, first).tolist(),
                strict=True,
            )
        )
    ]


def _attributes(count: int, duration_ns: int, top: list[str]) -> Attributes:
    return {FOLDED_COUNT: count, "recfn.folded.duration_ns": duration_ns, "recfn.folded.top": top}


def _longest(done: FinishedUnits, holder: Places, first: Places) -> NDArray[np.int64]:
    """Of each holder; of several the first. What is told as other ranges only where there is nothing else."""
    outermost = np.flatnonzero(done.path_above < 0)
    total_ns = np.where(done.path_name == OTHER, -1, done.path_total_ns)
    order = outermost[np.lexsort((-total_ns[outermost], holder[outermost]))]
    longest: NDArray[np.int64] = order[np.searchsorted(holder[order], np.arange(len(first)))]
    return longest


def _names_of(done: FinishedUnits, holder: Places) -> _Names:
    key = holder << 32 | done.path_name  # sorted as one column, which costs a seventh of sorting by two
    order = np.argsort(key, kind="stable")  # of a name, the paths stay in their order
    begins = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    names, holders = done.path_name[order], holder[order]
    self_ns = np.add.reduceat(done.path_self_ns[order], begins)
    rank = np.lexsort((order[begins], -self_ns, holders[begins]))
    begin = np.searchsorted(holders[begins], np.arange(int(holder[-1]) + 2)).tolist()
    counts = np.add.reduceat(done.path_count[order], begins)
    return _Names(begin, names[begins][rank].tolist(), counts[rank].tolist(), self_ns[rank].tolist())


def _top(of: _Names, holder: int, names: Sequence[str]) -> list[str]:
    begin, end = of.begin[holder], of.begin[holder + 1]
    return [
        f"{text_of_utf8(names[of.name[place]])}: {of.ranges[place]} x, {of.self_ns[place] / 1e6:.3f} ms"
        for place in range(begin, min(end, begin + TOP_NAMES))
    ]
