"""The tree of calls of a batch: by name, by thread, or by the modules of the model.

    rows ──► labels ──► paths, a level at a time: one for each name below each path
         ──► their sums ──► CallTree ──► read, printed

Each way to group differs in the labels alone: names, threads, or modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from otel_recfn.batches.call_paths import Ranges, call_paths, range_sums
from otel_recfn.batches.call_tree import CallPath, CallTree
from otel_recfn.batches.measures import Nesting, find_nesting, self_times, wait_times
from otel_recfn.batches.module_tree import module_tree
from otel_recfn.batches.number_sets import equals
from otel_recfn.batches.wall import MAX_FUNCTIONS, OUTSIDE, ThreadTime, Wall, thread_label
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RowKind

By = Literal["name", "thread", "module"]


def build_tree(
    batch: Batch,
    by: By = "name",
    lost: Mapping[str, int] | None = None,
    wall: Wall | None = None,
) -> CallTree:
    """The tree of a batch's ranges. The self times of its paths add up to those of the ranges.

    Args:
        batch: its ranges' parents are in it, or they are outermost.
        by: ``"name"``: a path for each name in each path; ``"thread"``: the same in each thread,
            where a range that lies in one of another thread is outermost; ``"module"``: the modules
            that were called, with their part of backward passes.
        lost: the counters of what isn't in the batch.
        wall: the wall time of the batch; None: that of its outermost ranges together.

    Raises:
        SettingError: another word.
    """
    if by not in get_args(By):
        raise SettingError(
            f"by={by!r} is no way to group a tree; allowed: {', '.join(get_args(By))}"
        )
    ranges = nested_ranges(batch, find_nesting(batch))
    make = {"name": _by_name, "thread": _by_thread, "module": module_tree}[by]
    tree = make(batch, ranges, lost)
    if wall is not None:
        tree.wall_time = wall.ns / 1000
        tree.outside = [
            row
            for thread in wall.threads
            if thread.outside_ns
            for row in _outside_rows(thread, by, len(wall.threads))
        ]
    return tree


def _outside_rows(thread: ThreadTime, by: By, threads: int) -> list[CallPath]:
    """The row for the time of a thread outside of ranges, and those of functions that were sampled
    there.

    With several threads it is in the thread's row, or has the thread's name.
    """
    path: tuple[str, ...] = (OUTSIDE,)
    if by == "thread" and thread.label:
        path = (thread.label, OUTSIDE)
    elif threads > 1:
        path = (f"{OUTSIDE} ({thread.name})",)
    functions = [
        _row((*path, f"{function.name} (sampled)"), function.time)
        for function in thread.functions[:MAX_FUNCTIONS]
    ]
    return [_row(path, thread.outside_ns / 1000), *functions]


def _row(path: tuple[str, ...], us: float) -> CallPath:
    return CallPath(
        path=path,
        count=0,
        cpu_time_total=us,
        self_cpu_time_total=us,
        cpu_time_min=0.0,
        cpu_time_max=0.0,
        wait_time_total=0.0,
        backward_cpu_time_total=0.0,
    )


def nested_ranges(batch: Batch, nested: Nesting) -> Ranges:
    """The ranges of a batch: the parent of each, and its times."""
    rows = np.flatnonzero(equals(batch.kind, RowKind.RANGE))
    position = np.full(len(batch), -1, np.int64)
    position[rows] = np.arange(len(rows))
    parent = np.full(len(batch), -1, np.int64)
    parent[nested.child] = position[nested.parent]
    return Ranges(
        rows=rows,
        parent=parent[rows],
        durations=np.maximum(batch.end_ns - batch.start_ns, 0)[rows],
        self_ns=self_times(batch, nested)[rows],
        wait_ns=wait_times(batch)[rows],
    )


def _by_name(batch: Batch, ranges: Ranges, lost: Mapping[str, int] | None) -> CallTree:
    paths = call_paths(ranges.parent, batch.name[ranges.rows].astype(np.int64))
    sums = range_sums(paths.row_path, len(paths.parent), ranges)
    return CallTree(paths.parent, paths.label, batch.names, sums, lost)


def _by_thread(batch: Batch, ranges: Ranges, lost: Mapping[str, int] | None) -> CallTree:
    thread = batch.thread[ranges.rows].astype(np.int64)
    threads, member = np.unique(thread, return_inverse=True)
    in_thread = np.zeros(len(thread), np.bool_)
    if len(thread):
        in_thread = (ranges.parent >= 0) & (thread == thread[ranges.parent])
    parent = np.where(in_thread, ranges.parent, len(thread) + member)  # threads follow the ranges
    thread_labels = len(batch.names) + np.arange(len(threads))
    labels = np.append(batch.name[ranges.rows].astype(np.int64), thread_labels)
    paths = call_paths(np.append(parent, np.full(len(threads), -1)), labels)
    sums = range_sums(paths.row_path[: len(thread)], len(paths.parent), ranges)
    # A thread has the time of the outermost ranges in it.
    outermost = np.flatnonzero((paths.parent >= 0) & (np.take(paths.parent, paths.parent) < 0))
    np.add.at(sums.total_ns, paths.parent[outermost], sums.total_ns[outermost])
    tracks = [batch.tracks[index] for index in threads.tolist()]
    names = [*batch.names, *map(thread_label, tracks)]
    return CallTree(paths.parent, paths.label, names, sums, lost)
