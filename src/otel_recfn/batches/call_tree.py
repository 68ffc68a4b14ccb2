"""Sums of ranges by call path: by name, by thread, and by the modules of the model.

rows ──► labels ──► paths, a level at a time: one for each name below each path ──► their sums ──► CallTree ──► read, printed
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from otel_recfn.batches.averages import Nesting, nesting, self_times, wait_times
from otel_recfn.batches.call_paths import CallTree, Ranges, call_paths, sums_of_ranges
from otel_recfn.batches.module_tree import tree_by_module
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind

By = Literal["name", "thread", "module"]


def tree_of_rows(batch: Batch, by: By = "name") -> CallTree:
    """The tree of a batch's ranges. The self times of its paths add up to those of the ranges.

    Args:
        batch: its ranges' parents are in it, or they are outermost.
        by: ``"name"``: a path for each name in each path; ``"thread"``: the same in each thread, where a range that lies in
            one of another thread is outermost; ``"module"``: the modules that were called, with their part
            of backward passes, as ``module_tree.py`` says.

    Raises:
        SettingError: another word.
    """
    if by not in get_args(By):
        raise SettingError(f"by={by!r} is no way to group a tree; allowed: {', '.join(get_args(By))}")
    ranges = ranges_of(batch, nesting(batch))
    if by == "module":
        return tree_by_module(batch, ranges)
    return _by_thread(batch, ranges) if by == "thread" else _by_name(batch, ranges)


def ranges_of(batch: Batch, nested: Nesting) -> Ranges:
    """The ranges of a batch: what each lies in, and its times."""
    rows = np.flatnonzero(batch.kind == EventKind.RANGE)
    place, above = np.full(len(batch), -1, np.int64), np.full(len(batch), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above[nested.child] = place[nested.parent]
    times = (np.maximum(batch.end_ns - batch.start_ns, 0), self_times(batch, nested), wait_times(batch))
    return Ranges(rows, above[rows], *[each[rows] for each in times])


def _by_name(batch: Batch, ranges: Ranges) -> CallTree:
    paths = call_paths(ranges.above, batch.name[ranges.rows].astype(np.int64))
    sums = sums_of_ranges(paths.of_row, len(paths.above), ranges)
    return CallTree(paths.above, paths.label, batch.names, sums)


def _by_thread(batch: Batch, ranges: Ranges) -> CallTree:
    thread = batch.thread[ranges.rows].astype(np.int64)
    threads, member = np.unique(thread, return_inverse=True)
    in_thread = (ranges.above >= 0) & (thread == thread[ranges.above]) if len(thread) else thread != 0
    above = np.where(in_thread, ranges.above, len(thread) + member)  # threads follow the ranges
    labels = np.append(batch.name[ranges.rows].astype(np.int64), len(batch.names) + np.arange(len(threads)))
    paths = call_paths(np.append(above, np.full(len(threads), -1)), labels)
    sums = sums_of_ranges(paths.of_row[: len(thread)], len(paths.above), ranges)
    outermost = np.flatnonzero((paths.above >= 0) & (np.take(paths.above, paths.above) < 0))
    np.add.at(sums.total_ns, paths.above[outermost], sums.total_ns[outermost])
    tracks = [batch.tracks[index] for index in threads.tolist()]
    names = [*batch.names, *[f"{track.name or 'thread'} {track.thread_id}" for track in tracks]]
    return CallTree(paths.above, paths.label, names, sums)
