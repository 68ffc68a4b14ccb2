"""What lies in what, where a trace tells times alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
ROUNDING_NS = 2
"""By so much a range may end after the one that it lies in, where a trace has times as decimals."""


class Slices(NamedTuple):
    """What stands in a trace, as columns."""

    start: Numbers
    end: Numbers
    thread: Numbers
    order: Numbers
    """Of begins, where times are equal."""
    can_hold: Mask
    """Whether others lie in it: marks and asynchronous ranges hold none."""


class Nested(NamedTuple):
    """The nesting of slices, as columns."""

    above: Numbers
    """The slice that each lies in; -1 at the top."""
    crosses: Mask
    """Whether it begins in a slice and ends after it."""
    end: Numbers
    """Without what rounding added."""
    ordered: Numbers
    """The slices in the order in which they began, a thread after the other."""


def nested_by_time(slices: Slices) -> Nested:
    """Within a thread, what began and ended inside another slice is inside it."""
    ordered = np.lexsort((slices.order, -slices.end, slices.start, slices.thread))
    columns = [column[ordered].tolist() for column in (slices.thread, slices.start, slices.end, slices.can_hold)]
    above, crosses, ends = [-1] * len(ordered), [False] * len(ordered), columns[2]
    around: list[int] = []
    last = -1
    for place, (thread, start, end, can_hold) in enumerate(zip(*columns, strict=True)):
        if thread != last:
            last = thread
            around.clear()
        while around and ends[around[-1]] <= start:
            around.pop()
        if around:
            inside = around[-1]
            if end > ends[inside] + ROUNDING_NS:
                crosses[place] = True
                inside = next((each for each in reversed(around) if ends[each] >= end), -1)
            elif end > ends[inside]:
                ends[place] = ends[inside]
            above[place] = inside
            if crosses[place]:
                continue
        if can_hold:
            around.append(place)
    return _unordered(ordered, above, crosses, ends)


def _unordered(ordered: Numbers, above: list[int], crosses: list[bool], ends: list[int]) -> Nested:
    """The columns, of slices in the order of the trace."""
    around = np.array(above, np.int64)
    found = Nested(
        np.empty(len(ordered), np.int64), np.empty(len(ordered), np.bool_), np.empty(len(ordered), np.int64), ordered
    )
    found.above[ordered] = np.where(around >= 0, ordered[around], -1)
    found.crosses[ordered] = crosses
    found.end[ordered] = ends
    return found


def open_at(slices: Slices, nested: Nested, thread: int, times: Numbers) -> Numbers:
    """The innermost slice that is open in a thread at each of these times, and began earlier; -1 where there is none."""
    holders = nested.ordered[(slices.can_hold & ~nested.crosses & (slices.thread == thread))[nested.ordered]]
    place = np.searchsorted(slices.start[holders], times, side="left") - 1
    found = np.where(place >= 0, holders[place], -1) if len(holders) else np.full(len(times), -1, np.int64)
    while True:
        is_over = (found >= 0) & (nested.end[found] <= times)
        if not is_over.any():
            return found
        found = np.where(is_over, nested.above[found], found)
