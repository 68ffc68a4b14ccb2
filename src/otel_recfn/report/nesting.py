"""The nesting of slices in a trace that has only their times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import neg
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
AT_ONCE = 1 << 14
"""The number of slices that are Python's numbers at a time: these take four times as much memory
as a column."""
ROUNDING_NS = 2
"""The maximum time that a slice may end after its parent, as times written as decimals are
rounded.
"""


class Slices(NamedTuple):
    """The slices of a trace as columns: one thread after the other, its slices in the order in
    which they began.
    """

    start: Numbers
    end: Numbers
    thread: Numbers
    can_enclose: Mask
    """Whether others may lie in it: marks and asynchronous ranges hold none."""
    begins_block: Mask
    """Whether it is a call that may begin a range which outlasts it, as ``__enter__`` does."""


class Nested(NamedTuple):
    """The nesting of slices, as columns."""

    parent: Numbers
    """The slice that each lies in; -1 at the top."""
    crosses: Mask
    """Whether it begins in a slice and ends after it."""
    end: Numbers
    """The end of each, cut to that of the slice around it where rounding made it later, and of a
    call that begins a range to the begin of that.
    """


def nested_by_time(slices: Slices) -> Nested:
    """The nesting of slices: the parent of each is the innermost slice of its thread that was open
    all the time.

    Python's calls in torch.profiler's traces show how a range is begun: in ``__enter__``, which
    returns after that. Such a range would cross the call, and what runs in it lie beside it, so
    that the call ends where the range begins.

        ──[ __enter__     ]──────────        ──[ __enter__ ]────────────
             ──[ range        ]──       ──►                 [ range    ]──
    """
    parent = np.full(len(slices.start), -1, np.int64)
    crosses = np.zeros(len(slices.start), np.bool_)
    ends = slices.end.copy()
    enclosing: list[int] = []
    enclosing_ends: list[int] = []  # never later than those before them
    last = -1
    for position, (start, end, thread, can_enclose) in enumerate(_as_numbers(slices)):
        if thread != last:
            last = thread
            enclosing.clear()
            enclosing_ends.clear()
        while enclosing and enclosing_ends[-1] <= start:
            enclosing.pop()
            enclosing_ends.pop()
        inside = len(enclosing)
        is_crossing = False
        if enclosing and end > enclosing_ends[-1] + ROUNDING_NS:
            inside = bisect_right(enclosing_ends, -end, key=neg)  # those that end later
            if can_enclose and slices.begins_block[enclosing[inside]]:
                ends[enclosing[inside:]] = start
                del enclosing[inside:]
                del enclosing_ends[inside:]
            else:
                is_crossing = True
        elif enclosing and end > enclosing_ends[-1]:
            ends[position] = end = enclosing_ends[-1]
        if inside:
            parent[position] = enclosing[inside - 1]
        crosses[position] = is_crossing
        if can_enclose and not is_crossing:
            enclosing.append(position)
            enclosing_ends.append(end)
    return Nested(parent, crosses, ends)


def _as_numbers(slices: Slices) -> Iterator[tuple[int, int, int, bool]]:
    """The start, end and thread of each slice, and whether others may lie in it.

    They become Python's numbers a part at a time.
    """
    for begin in range(0, len(slices.start), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        yield from zip(*[column[part].tolist() for column in slices[:-1]], strict=True)


def put_in_what_was_open(slices: Slices, nested: Nested, encloses: Mask, thread: int) -> None:
    """Change the nesting in a thread: each slice lies in the enclosing one that began last of those
    that were open as it began, also if it ends later.
    """
    part = in_thread(slices, thread)
    columns = [column[part].tolist() for column in (slices.start, nested.end, encloses)]
    open_slices: list[tuple[int, int]] = []
    for position, (start, end, may_enclose) in enumerate(zip(*columns, strict=True), part.start):
        open_slices = [each for each in open_slices if each[1] > start]
        nested.parent[position] = open_slices[-1][0] if open_slices else -1
        if may_enclose:
            open_slices.append((position, end))


def without_spans(nested: Nested, is_span: Mask) -> Numbers:
    """The parent of each slice, passing over the program's spans."""
    parent: Numbers = nested.parent.copy()
    while (in_span := (parent >= 0) & is_span[parent]).any():
        parent[in_span] = nested.parent[parent[in_span]]
    return parent


def in_thread(slices: Slices, thread: int) -> slice:
    """The slices of a thread."""
    begin, end = np.searchsorted(slices.thread, [thread, thread + 1]).tolist()
    return slice(begin, end)


def open_at(slices: Slices, nested: Nested, thread: int, times: Numbers) -> Numbers:
    """The innermost slice that is open in a thread at each of these times, and began earlier; -1
    where there is none.
    """
    thread_slices = in_thread(slices, thread)
    candidates = thread_slices.start + np.flatnonzero(
        slices.can_enclose[thread_slices] & ~nested.crosses[thread_slices]
    )
    if not len(candidates):
        return np.full(len(times), -1, np.int64)
    position = np.searchsorted(slices.start[candidates], times, side="left") - 1
    found = np.where(position >= 0, candidates[position], -1)
    is_over = (found >= 0) & (nested.end[found] <= times)
    # Of slices that are over, so that no slice is passed twice, as times only grow.
    enclosing: dict[int, int] = {}
    for index in np.flatnonzero(is_over)[np.argsort(times[is_over], kind="stable")].tolist():
        passed = []
        inside = int(found[index])
        while inside >= 0 and nested.end[inside] <= times[index]:
            passed.append(inside)
            inside = enclosing.get(inside, int(nested.parent[inside]))
        enclosing |= dict.fromkeys(passed, inside)
        found[index] = inside
    return found
