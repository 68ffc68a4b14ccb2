"""The call tree of rows: by the names of ranges alone, within threads, or of module calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.self_times import nesting, self_times
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import Track
from otel_recfn.model.errors import SettingError
from otel_recfn.model.events import SOURCES, EventKind, EventSource
from otel_recfn.store.call_paths import Amounts, Paths, PathSums, Places, call_paths, sums_of_ranges
from otel_recfn.store.call_tree import CallTree

By = Literal["name", "thread", "module"]
OUTSIDE = "(in no module)"


@dataclass(frozen=True)
class _Ranges:
    """The ranges of a batch, as columns of equal length."""

    rows: Places
    above: Places
    """The range that it lies in, as a place in these columns; -1 at the top."""
    durations: Amounts
    self_ns: Amounts


def tree_of_rows(batch: Batch, by: By = "name") -> CallTree:
    """The tree of a batch's ranges. The times that its paths have for themselves add up to those of the ranges.

    Args:
        batch: its ranges' parents are in it, or they are outermost.
        by: ``"name"``: a path for each name in each path; ``"thread"``: the same in each thread, where a range that lies in
            one of another thread is outermost; ``"module"``: module calls alone, each with the time of what isn't in another.

    Raises:
        SettingError: another word.
    """
    if by not in get_args(By):
        raise SettingError(f"by={by!r} is no way to group a tree; allowed: {', '.join(get_args(By))}")
    ranges = _ranges_of(batch)
    return {"name": _by_name, "thread": _by_thread, "module": _by_module}[by](batch, ranges)


def _ranges_of(batch: Batch) -> _Ranges:
    rows = np.flatnonzero(batch.kind == EventKind.RANGE)
    nested = nesting(batch)
    place = np.full(len(batch), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above = np.full(len(batch), -1, np.int64)
    above[nested.child] = place[nested.parent]
    durations = np.maximum(batch.end_ns - batch.start_ns, 0)
    return _Ranges(rows, above[rows], durations[rows], self_times(batch, nested)[rows])


def _by_name(batch: Batch, ranges: _Ranges) -> CallTree:
    paths = call_paths(ranges.above, _name_of(batch, ranges))
    return CallTree(paths.above, paths.label, batch.names, _sums(paths, paths.of_row, ranges))


def _by_thread(batch: Batch, ranges: _Ranges) -> CallTree:
    thread = batch.thread[ranges.rows].astype(np.int64)
    threads, member = np.unique(thread, return_inverse=True)
    in_thread = (ranges.above >= 0) & (thread == thread[ranges.above]) if len(thread) else thread != 0
    above = np.where(in_thread, ranges.above, len(thread) + member)  # the threads stand behind the ranges
    labels = np.append(_name_of(batch, ranges), len(batch.names) + np.arange(len(threads)))
    paths = call_paths(np.append(above, np.full(len(threads), -1)), labels)
    sums = _sums(paths, paths.of_row[: len(thread)], ranges)
    outermost = np.flatnonzero((paths.above >= 0) & (np.take(paths.above, paths.above) < 0))
    np.add.at(sums.total_ns, paths.above[outermost], sums.total_ns[outermost])
    return CallTree(paths.above, paths.label, [*batch.names, *(_thread_name(batch.tracks[one]) for one in threads)], sums)


def _by_module(batch: Batch, ranges: _Ranges) -> CallTree:
    is_call = batch.source[ranges.rows] == EventSource.MODULE
    above = _nearest(ranges.above, is_call)
    taken_by = np.where(is_call, np.arange(len(above)), above)
    outside = taken_by < 0
    names, label = _module_names(batch, ranges.rows, is_call)
    shown = np.flatnonzero(is_call | outside)
    place = np.full(len(above) + 1, -1, np.int64)  # the last one: of what lies in nothing
    place[shown] = np.arange(len(shown))
    paths = call_paths(place[above[shown]], np.where(outside, 0, label)[shown])
    path = paths.of_row[place[np.where(outside, np.arange(len(above)), taken_by)]]
    own = np.where(outside, ranges.self_ns, ranges.durations)
    sums = sums_of_ranges(path, len(paths.above), own, ranges.self_ns, is_call | outside)
    return CallTree(paths.above, paths.label, names, sums)


def _nearest(above: Places, wanted: NDArray[np.bool_]) -> Places:
    """The nearest of the wanted ranges that each lies in; -1 where it lies in none."""
    nearest: Places = above.copy()
    while True:
        passed = np.flatnonzero(nearest >= 0)
        passed = passed[~wanted[nearest[passed]]]
        if not len(passed):
            return nearest
        nearest[passed] = above[nearest[passed]]


def _name_of(batch: Batch, ranges: _Ranges) -> Places:
    return batch.name[ranges.rows].astype(np.int64)


def _sums(paths: Paths, path: Places, ranges: _Ranges) -> PathSums:
    return sums_of_ranges(path, len(paths.above), ranges.durations, ranges.self_ns)


def _module_names(batch: Batch, rows: Places, is_call: NDArray[np.bool_]) -> tuple[list[str], Places]:
    """What module calls are called (by their path in the model, or by their class where they are outermost), for each row."""
    prefix = SOURCES[EventSource.MODULE].call_prefix or ""
    numbers, label = {OUTSIDE: 0}, np.zeros(len(rows), np.int64)
    for place in np.flatnonzero(is_call).tolist():
        row = rows[place]
        text = batch.names[batch.module[row]] or batch.names[batch.name[row]].removeprefix(prefix)
        label[place] = numbers.setdefault(text, len(numbers))
    return list(numbers), label


def _thread_name(track: Track) -> str:
    return f"{track.name or 'thread'} {track.thread_id}"
