"""Sums of ranges by call path: by name, by thread, and by the modules of the model.

rows ──► labels ──► paths, a level at a time: one for each name below each path ──► their sums ──► CallTree ──► read, printed

By module, a range counts to the innermost of these that it is, or is in
    a call of a module         that module
    a node of a backward pass  the module that the node's forward range counts to
    an optimizer's step, the loader of data, the accumulation of gradients: a line of its own
or else to "(in no module)"
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.averages import Nesting, nesting, self_times, wait_times
from otel_recfn.batches.call_paths import (
    Amounts,
    CallTree,
    PathSums,
    Ranges,
    call_paths,
    sums_of_ranges,
)
from otel_recfn.batches.forward_links import NODES_PREFIX, find_links
from otel_recfn.batches.number_sets import Places
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OPTIMIZER, SOURCES, EventSource, RowKind

By = Literal["name", "thread", "module"]
OUTSIDE = "(in no module)"
ACCUMULATION = "(accumulation of gradients)"
ACCUMULATES = NODES_PREFIX + "torch::autograd::AccumulateGrad"
"""The range that adds to a parameter's gradient: no forward operator has its number."""
WITH_LINES_OF_THEIR_OWN = (OPTIMIZER, "enumerate(DataLoader)#")
"""The beginnings of names of PyTorch's ranges that are no module's."""
MOST_DERIVATIVES = 8
"""The most nodes in a row: a node's forward range may be in a node itself, if a derivative is derived again."""

Mask = NDArray[np.bool_]


def tree_of_rows(batch: Batch, by: By = "name") -> CallTree:
    """The tree of a batch's ranges. The self times of its paths add up to those of the ranges.

    Args:
        batch: its ranges' parents are in it, or they are outermost.
        by: ``"name"``: a path for each name in each path; ``"thread"``: the same in each thread, where a range that lies in
            one of another thread is outermost; ``"module"``: the modules that were called, with their part
            of backward passes.

    Raises:
        SettingError: another word.
    """
    if by not in get_args(By):
        raise SettingError(
            f"by={by!r} is no way to group a tree; allowed: {', '.join(get_args(By))}"
        )
    ranges = ranges_of(batch, nesting(batch))
    if by == "module":
        return _by_module(batch, ranges)
    return _by_thread(batch, ranges) if by == "thread" else _by_name(batch, ranges)


def ranges_of(batch: Batch, nested: Nesting) -> Ranges:
    """The ranges of a batch: what each lies in, and its times."""
    rows = np.flatnonzero(batch.kind == RowKind.RANGE)
    place, above = np.full(len(batch), -1, np.int64), np.full(len(batch), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above[nested.child] = place[nested.parent]
    times = (
        np.maximum(batch.end_ns - batch.start_ns, 0),
        self_times(batch, nested),
        wait_times(batch),
    )
    return Ranges(rows, above[rows], *[each[rows] for each in times])


def _by_name(batch: Batch, ranges: Ranges) -> CallTree:
    paths = call_paths(ranges.above, batch.name[ranges.rows].astype(np.int64))
    sums = sums_of_ranges(paths.of_row, len(paths.above), ranges)
    return CallTree(paths.above, paths.label, batch.names, sums)


def _by_thread(batch: Batch, ranges: Ranges) -> CallTree:
    thread = batch.thread[ranges.rows].astype(np.int64)
    threads, member = np.unique(thread, return_inverse=True)
    in_thread = (
        (ranges.above >= 0) & (thread == thread[ranges.above]) if len(thread) else thread != 0
    )
    above = np.where(in_thread, ranges.above, len(thread) + member)  # threads follow the ranges
    labels = np.append(
        batch.name[ranges.rows].astype(np.int64), len(batch.names) + np.arange(len(threads))
    )
    paths = call_paths(np.append(above, np.full(len(threads), -1)), labels)
    sums = sums_of_ranges(paths.of_row[: len(thread)], len(paths.above), ranges)
    outermost = np.flatnonzero((paths.above >= 0) & (np.take(paths.above, paths.above) < 0))
    np.add.at(sums.total_ns, paths.above[outermost], sums.total_ns[outermost])
    tracks = [batch.tracks[index] for index in threads.tolist()]
    names = [*batch.names, *[f"{track.name or 'thread'} {track.thread_id}" for track in tracks]]
    return CallTree(paths.above, paths.label, names, sums)


def _by_module(batch: Batch, ranges: Ranges) -> CallTree:
    """The tree of the modules that were called. The time of each is that of the ranges that count to it or below it."""
    names, label, is_line = _labels(batch, ranges.rows)
    forward = _forward_ranges(batch, ranges)
    is_node = (forward >= 0) & ~is_line
    near = _nearest(ranges.above, is_line | is_node)
    itself = np.where(is_line | is_node, np.arange(len(near)), near)
    taken_by = _followed(itself, forward, is_node)
    outside = taken_by < 0
    shown = np.flatnonzero(is_line | outside)
    place = np.full(len(near) + 1, -1, np.int64)  # the last entry is for ranges at the top
    place[shown] = np.arange(len(shown))
    around = _calls_around(batch, ranges.rows, near, taken_by, is_node, label)
    paths = call_paths(place[around[shown]], label[shown])
    path = paths.of_row[place[np.where(outside, np.arange(len(near)), taken_by)]]
    durations = np.where(outside, ranges.self_ns, ranges.durations)
    sums = sums_of_ranges(path, len(paths.above), ranges, durations, is_line | outside)
    backward = np.where(itself != taken_by, ranges.self_ns, 0)
    return CallTree(
        paths.above, paths.label, names, _of_whole_paths(sums, path, paths.above, backward)
    )


def _labels(batch: Batch, rows: Places) -> tuple[list[str], Places, Mask]:
    """The names of lines; the number of each range's name; and whether it has a line: the others are in no module.

    A call has the name of its path in the model, or of its class if it is outermost.
    """
    own = [_own_line(name) for name in batch.names]
    is_line = np.array([bool(line) for line in own], np.bool_)[batch.name[rows]] | (
        batch.source[rows] == EventSource.MODULE
    )
    prefix = SOURCES[EventSource.MODULE].call_prefix or ""
    numbers, label = {OUTSIDE: 0}, np.zeros(len(rows), np.int64)
    for place in np.flatnonzero(is_line).tolist():
        name = int(batch.name[rows[place]])
        text = (
            own[name]
            or batch.names[batch.module[rows[place]]]
            or batch.names[name].removeprefix(prefix)
        )
        label[place] = numbers.setdefault(text, len(numbers))
    return list(numbers), label, is_line


def _own_line(name: str) -> str:
    if name == ACCUMULATES:
        return ACCUMULATION
    return name if name.startswith(WITH_LINES_OF_THEIR_OWN) else ""


def _forward_ranges(batch: Batch, ranges: Ranges) -> Places:
    """The forward range of each node of a backward pass, -1 for others. The range around a node counts as one, too."""
    links = find_links(_native.ForwardRanges(), batch, np.zeros(len(batch.tracks), np.uint64))
    forward = np.full(len(ranges.rows), -1, np.int64)
    ids = batch.event_id[ranges.rows]
    order = np.argsort(ids)
    node = np.searchsorted(ranges.rows, links.row)
    forward[node] = order[np.searchsorted(ids, links.event_id, sorter=order)]
    is_around = np.array([name.startswith(NODES_PREFIX) for name in batch.names], np.bool_)[
        batch.name[ranges.rows]
    ]
    above = ranges.above[node]
    inner = node[(above >= 0) & is_around[above]]
    forward[ranges.above[inner]] = forward[inner]
    return forward


def _nearest(above: Places, wanted: Mask) -> Places:
    """The nearest of the wanted ranges around each; -1 if there is none."""
    nearest: Places = above.copy()
    while True:
        passed = np.flatnonzero(nearest >= 0)
        passed = passed[~wanted[nearest[passed]]]
        if not len(passed):
            return nearest
        nearest[passed] = above[nearest[passed]]


def _followed(itself: Places, forward: Places, is_node: Mask) -> Places:
    """The line that each range counts to, by the line or node that it is or is in (``itself``); -1 if there is none."""
    found: Places = itself.copy()
    for _ in range(MOST_DERIVATIVES):
        nodes = np.flatnonzero((found >= 0) & is_node[found])
        if not len(nodes):
            return found
        found[nodes] = itself[forward[found[nodes]]]
    found[(found >= 0) & is_node[found]] = -1
    return found


def _calls_around(
    batch: Batch, rows: Places, near: Places, taken_by: Places, is_node: Mask, label: Places
) -> Places:
    """The call or line around each call, as the tree shows it; -1 for the outermost.

    A call that a backward pass repeats (a checkpoint's forward) is shown at the place and by the name of the first one:
    ``label`` is changed, as the model's path to it wasn't known.
    """
    around, before, again = np.full(len(near), -1, np.int64), dict[int, int](), set[int]()
    calls = np.flatnonzero(batch.source[rows] == EventSource.MODULE)
    in_order = calls[np.lexsort((batch.event_id[rows[calls]], batch.start_ns[rows[calls]]))]
    columns = (in_order, near[in_order], batch.name[rows[in_order]])
    for call, inside, name in zip(*[column.tolist() for column in columns], strict=True):
        in_node = inside >= 0 and bool(is_node[inside])
        known = before.get(name, -1)
        around[call] = inside if not in_node else around[known] if known >= 0 else taken_by[inside]
        if in_node or inside in again:
            again.add(call)
            label[call] = label[known] if known >= 0 else label[call]
        else:
            before[name] = call
    return around


def _of_whole_paths(sums: PathSums, path: Places, above: Places, backward: Amounts) -> PathSums:
    """The sums with the time of inner paths in each total. ``backward`` is the time of each range that a backward pass took."""
    total, of_backward = sums.self_ns.copy(), np.zeros(len(above), np.int64)
    np.add.at(of_backward, path, backward)
    for inner in range(len(above) - 1, -1, -1):
        if above[inner] >= 0:
            total[above[inner]] += total[inner]
            of_backward[above[inner]] += of_backward[inner]
    return replace(sums, total_ns=total, backward_ns=of_backward)
