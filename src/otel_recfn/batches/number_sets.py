"""Set operations on columns of numbers. numpy's own import ``numpy.ma`` when they are first called.

Our threads must not import anything: a forked child would wait for ever for a module that its parent was importing.

And several stretches of a column, one after the other.
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
    place = np.searchsorted(ordered, numbers)
    place[place == len(ordered)] = 0
    found: NDArray[np.bool_] = ordered[place] == numbers
    return found


def _is_first(ordered: Numbers) -> NDArray[np.bool_]:
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


Places = NDArray[np.int64]


def places_in(begins: Places, lengths: Places) -> Places:
    """The places of all elements of stretches, given by where each begins and how long it is."""
    skipped = np.cumsum(lengths) - lengths
    places: Places = np.arange(int(lengths.sum())) + np.repeat(begins - skipped, lengths)
    return places


def begins_of(ends: Places, which: Places) -> Places:
    """The begins of some stretches, of consecutive stretches that end at ``ends``."""
    return np.where(which > 0, ends[which - 1], 0)
