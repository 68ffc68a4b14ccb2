"""Set operations on columns of numbers. numpy has them too, but imports ``numpy.ma`` when they are first called.

Our threads must not import anything: a forked child would wait for ever for a module that its parent was importing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.events import ORDINAL_BITS

Numbers = NDArray[Any]
MOST_THREADS = 4
PLACES_OF_AN_ID = 16
FEW = 8
"""So many times fewer ids than they are looked for among are not worth a table."""


class Groups(NamedTuple):
    """Equal numbers of a column, put together."""

    numbers: Numbers
    """Each once, in ascending order."""
    first: NDArray[np.int64]
    """Where it stands first."""
    counts: NDArray[np.int64]
    """How often."""


def distinct(numbers: Numbers) -> Numbers:
    """Each number once, in ascending order."""
    ordered = np.sort(numbers)
    return ordered[_is_first(ordered)]


def groups(numbers: Numbers) -> Groups:
    """Each number once, in ascending order, with its place and its count."""
    order = np.argsort(numbers, kind="stable").astype(np.int64, copy=False)
    ordered = numbers[order]
    begins = np.flatnonzero(_is_first(ordered)).astype(np.int64, copy=False)
    counts = np.diff(np.append(begins, np.int64(len(numbers))))
    return Groups(ordered[begins], order[begins], counts)


def counts_of(numbers: Numbers) -> tuple[list[int], list[int]]:
    """Each number once, in ascending order, and how often it is there. Fast where equal ones stand side by side."""
    begins = np.flatnonzero(_is_first(numbers))
    lengths = np.diff(np.append(begins, np.int64(len(numbers))))
    order = np.argsort(numbers[begins], kind="stable")
    ordered = numbers[begins][order]
    first = np.flatnonzero(_is_first(ordered))
    return ordered[first].tolist(), np.add.reduceat(lengths[order], first).tolist()


def is_in(numbers: Numbers, others: Numbers | Sequence[int]) -> NDArray[np.bool_]:
    """Which of ``numbers`` are among ``others``."""
    return is_in_ordered(numbers, np.sort(np.asarray(others, dtype=numbers.dtype)))


def is_in_ordered(numbers: Numbers, ordered: Numbers) -> NDArray[np.bool_]:
    """Which of ``numbers`` are among these, which ascend."""
    if not len(ordered) or not len(numbers):
        return np.zeros(len(numbers), dtype=np.bool_)
    place = np.searchsorted(ordered, numbers)
    place[place == len(ordered)] = 0
    found: NDArray[np.bool_] = ordered[place] == numbers
    return found


def are_among(event_ids: Numbers, ordered: Numbers) -> NDArray[np.bool_]:
    """Which event ids are among these, which ascend.

    A thread's count up, so that mostly nearly all between its smallest and its largest are there: those have a table.
    """
    if len(ordered) > FEW * len(event_ids):
        return is_in_ordered(event_ids, ordered)
    threads = ordered >> np.uint64(ORDINAL_BITS)
    begins = np.flatnonzero(_is_first(threads)).tolist()
    if len(begins) > MOST_THREADS:
        return is_in_ordered(event_ids, ordered)
    found = np.zeros(len(event_ids), np.bool_)
    for begin, end in pairwise([*begins, len(ordered)]):
        found |= _are_among_those_of_a_thread(event_ids, ordered[begin:end])
    return found


def _are_among_those_of_a_thread(event_ids: Numbers, ordered: Numbers) -> NDArray[np.bool_]:
    first, size = ordered[0], int(ordered[-1] - ordered[0]) + 1
    if size > PLACES_OF_AN_ID * len(ordered):
        return is_in_ordered(event_ids, ordered)
    there = np.zeros(size + 1, np.bool_)
    there[(ordered - first).view(np.int64)] = True
    place = np.minimum(event_ids - first, np.uint64(size))  # also of smaller ids: no number is below 0
    found: NDArray[np.bool_] = there[place.view(np.int64)]
    return found


def _is_first(ordered: Numbers) -> NDArray[np.bool_]:
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return first
