"""The time of a run, shared among the threads that work in it, so that no moment counts twice.

    main thread    ──[ aten::mm ]──[ run_backward, a Python call that waits    ]──────
    autograd's     ──────────────────────[ MmBackward0 ]──────────────────────────────
    who has it       aten::mm       run_    MmBackward0   run_backward

A moment belongs to the ranges that are innermost in their threads then. Ranges that work have it
before Python functions and blocks, which hold any work, or wait for it; if several threads work at
once, each has an equal part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.events import INT64
from otel_recfn.report.nesting import Mask, Numbers

LONGEST_PAUSE_NS = 10_000_000
"""The most of a pause, in which no thread has a range, that counts as the program's work: the rest
may be waiting for requests."""
Times = NDArray[np.float64]


class ThreadRanges(NamedTuple):
    """Ranges that take the time of a thread, as columns, a child before its parent."""

    lane: Numbers
    start_ns: Numbers
    end_ns: Numbers
    parent: Numbers
    """The range around each in the same lane, as a place in these columns; -1 at the top."""
    works: Mask
    """Whether it has a moment before those that don't work."""


class SharedTime(NamedTuple):
    """The time of a run, in nanoseconds."""

    own_ns: Times
    """The time that each range has, as a column."""
    with_inner_ns: Times
    """The same with what ran in it in its thread."""
    whole_ns: int
    """The time in which any range ran, with short pauses between them."""


def shared_time(ranges: ThreadRanges) -> SharedTime:
    """The time of a process, shared among its ranges: ``own_ns`` adds up to ``whole_ns`` at
    most.
    """
    count = len(ranges.lane)
    at = np.concatenate([ranges.start_ns, ranges.end_ns])
    at -= at.min(initial=INT64.stop - 1)  # sums of Unix times as floats would be inexact
    lane = np.tile(ranges.lane, 2)
    indices = np.arange(count)
    # At the same moment a child ends before its parent, and that before what begins next, a parent
    # before its child.
    order = np.lexsort((np.concatenate([-indices, indices]), np.repeat([1, 0], count), at, lane))
    innermost = np.concatenate([indices, ranges.parent])[order]
    begin = at[order]
    lane = lane[order]
    is_last = np.append(lane[1:] != lane[:-1], np.ones(min(count, 1), np.bool_))
    end = np.where(is_last, begin, np.append(begin[1:], begin[:1]))
    # What is over has no more time.
    end = np.where(innermost >= 0, np.minimum(end, at[count + innermost]), begin)
    parts = np.flatnonzero(end > begin)
    times = np.zeros(2 * count)
    times[parts], whole_ns = _shared(begin[parts], end[parts], ranges.works[innermost[parts]])
    passed = np.append(0.0, np.cumsum(times))
    position = np.empty(2 * count, np.int64)
    position[order] = np.arange(2 * count)
    own_ns = np.bincount(innermost[parts], times[parts], minlength=count).astype(np.float64)
    return SharedTime(
        own_ns, np.maximum(passed[position[count:]] - passed[position[:count]], 0.0), whole_ns
    )


def _shared(begin: Numbers, end: Numbers, works: Mask) -> tuple[Times, int]:
    """The time that each of these stretches of time has, and the whole time with short pauses."""
    moments = np.unique(np.concatenate([begin, end]))
    lengths = np.diff(moments)
    first = np.searchsorted(moments, begin)
    last = np.searchsorted(moments, end)
    working, others = (
        _open_stretches(first[which], last[which], len(moments)) for which in (works, ~works)
    )
    each_working = np.where(working > 0, lengths / np.maximum(working, 1), 0.0)
    each_other = np.where(working == 0, lengths / np.maximum(others, 1), 0.0)
    passed = [np.append(0.0, np.cumsum(each)) for each in (each_other, each_working)]
    times = np.where(works, passed[1][last] - passed[1][first], passed[0][last] - passed[0][first])
    is_pause = working + others == 0
    return times, int(np.where(is_pause, np.minimum(lengths, LONGEST_PAUSE_NS), lengths).sum())


def _open_stretches(first: Numbers, last: Numbers, moments: int) -> Numbers:
    """The number of stretches that are open from each moment to the next."""
    changes = np.bincount(first, minlength=moments) - np.bincount(last, minlength=moments)
    return np.asarray(np.cumsum(changes)[:-1])
