"""Set operations on columns of numbers. numpy's own import ``numpy.ma`` when they are first called.

Our threads must not import anything: a forked child would wait for ever for a module that its
parent was importing.

And several stretches of a column, one after the other; and ways through a column of places that
lead to other places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


class Groups(NamedTuple):
    """The distinct numbers of a column."""

    numbers: Numbers
    """The numbers, ascending."""
    first: NDArray[np.int64]
    """The first place of each."""
    counts: NDArray[np.int64]
    """The count of each."""


def equals(numbers: Numbers, value: int) -> NDArray[np.bool_]:
    """A mask of the ``numbers`` that are ``value``.

    They are compared in the column's own type. To numpy a member of an IntEnum is an int64, to
    which it would cast a long column of bytes through a buffer. Where there is no memory for a
    buffer, it sets the error without the GIL, and crashes.
    """
    mask: NDArray[np.bool_] = numbers == numbers.dtype.type(value)
    return mask


def distinct(numbers: Numbers) -> Numbers:
    """The distinct numbers, ascending."""
    ordered = np.sort(numbers)
    return ordered[_is_first(ordered)]


def groups(numbers: Numbers) -> Groups:
    """The distinct numbers, ascending, each with its first place and its count."""
    order = np.argsort(numbers, kind="stable").astype(np.int64, copy=False)
    ordered = numbers[order]
    begins = np.flatnonzero(_is_first(ordered)).astype(np.int64, copy=False)
    counts = np.diff(np.append(begins, np.int64(len(numbers))))
    return Groups(ordered[begins], order[begins], counts)


def is_in(numbers: Numbers, others: Numbers | Sequence[int]) -> NDArray[np.bool_]:
    """A mask of the ``numbers`` that are among ``others``."""
    ordered = np.sort(np.asarray(others, dtype=numbers.dtype))
    if not len(ordered) or not len(numbers):
        return np.zeros(len(numbers), dtype=np.bool_)
    index = np.searchsorted(ordered, numbers)
    index[index == len(ordered)] = 0
    found: NDArray[np.bool_] = ordered[index] == numbers
    return found


def _is_first(ordered: Numbers) -> NDArray[np.bool_]:
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


Indices = NDArray[np.int64]


def indices_in(begins: Indices, lengths: Indices) -> Indices:
    """The places of all elements of stretches, given by where each begins and how long it is."""
    skipped = np.cumsum(lengths) - lengths
    indices: Indices = np.arange(int(lengths.sum())) + np.repeat(begins - skipped, lengths)
    return indices


def begin_offsets(ends: Indices, which: Indices) -> Indices:
    """The begins of some stretches, of consecutive stretches that end at ``ends``."""
    return np.where(which > 0, ends[which - 1], 0)


def nearest(parent: Indices, wanted: NDArray[np.bool_]) -> Indices:
    """The nearest wanted place for each place: itself, or else one that ``parent`` leads to from
    it; -1 if there is none.
    """
    top = len(parent)
    reached: Indices = np.append(
        np.where(wanted, np.arange(top), np.where(parent >= 0, parent, top)), top
    )
    while not np.array_equal(doubled := reached[reached], reached):
        reached = doubled  # twice as far each time, as calls may nest as deep as there are calls
    return np.where(reached[:-1] == top, -1, reached[:-1])


def sums_upwards(parent: Indices, amounts: Indices) -> Indices:
    """The amount of each place, and of all that ``parent`` leads to from it."""
    sums: Indices = amounts.copy()
    reached: Indices = parent.copy()
    while len(inside := np.flatnonzero(reached >= 0)):
        sums[inside] += sums[reached[inside]]
        reached[inside] = reached[reached[inside]]
    return sums
