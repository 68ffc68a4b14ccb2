"""The nesting of slices in a trace that tells only their times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
ROUNDING_NS = 2
"""The most that a slice may end after the one around it, as times written as decimals are rounded."""


class Slices(NamedTuple):
    """The slices of a trace as columns: one thread after the other, its slices in the order in which they began."""

    start: Numbers
    end: Numbers
    thread: Numbers
    can_hold: Mask
    """Whether others may lie in it: marks and asynchronous ranges hold none."""


class Nested(NamedTuple):
    """The nesting of slices, as columns."""

    above: Numbers
    """The slice that each lies in; -1 at the top."""
    crosses: Mask
    """Whether it begins in a slice and ends after it."""
    end: Numbers
    """The end of each, cut to that of the slice around it where rounding made it later."""


def nested_by_time(slices: Slices) -> Nested:
    """The nesting of slices: each lies in the innermost slice of its thread in whose time it began and ended."""
    columns = [
        column.tolist() for column in (slices.thread, slices.start, slices.end, slices.can_hold)
    ]
    above, crosses, ends = [-1] * len(slices.start), [False] * len(slices.start), columns[2]
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
    return Nested(np.array(above, np.int64), np.array(crosses, np.bool_), np.array(ends, np.int64))


def open_at(slices: Slices, nested: Nested, thread: int, times: Numbers) -> Numbers:
    """The innermost slice that is open in a thread at each of these times, and began earlier; -1 where there is none."""
    holders = np.flatnonzero(slices.can_hold & ~nested.crosses & (slices.thread == thread))
    place = np.searchsorted(slices.start[holders], times, side="left") - 1
    found = (
        np.where(place >= 0, holders[place], -1)
        if len(holders)
        else np.full(len(times), -1, np.int64)
    )
    while True:
        is_over = (found >= 0) & (nested.end[found] <= times)
        if not is_over.any():
            return found
        found = np.where(is_over, nested.above[found], found)
