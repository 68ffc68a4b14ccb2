"""The ranges of a recording: their columns and call paths, and how to find ranges among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from otel_recfn.batches.call_paths import Amounts, PathSums, Ranges, range_sums
from otel_recfn.batches.number_sets import Indices, nearest
from otel_recfn.batches.span_names import class_in_name
from otel_recfn.model.events import INT64
from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.columns import join_columns
from otel_recfn.report.kinds import GPU
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.paths import recorded_paths
from otel_recfn.report.process import Process


class RecordedRanges:
    """The ranges of processes, one process after the other.

    Args:
        processes: in their batches a row stands before the one around it, as a drain closes them.
        other_processes: those of the run, whose ranges it doesn't have.

    Attributes:
        lanes: the process and the name of each thread.
        labels: the names of ranges without their numbers, then those of spans and of groups.
        process, row, lane, label, parent, start_ns, total_ns, self_ns, cpu_ns, allocated, large,
            kind, activity, step, is_step, is_open, overlaps, enclosing_span: columns with an entry
            for each range, as ``RangeColumns`` explains them.
        spans: the program's spans, which are no ranges.
        paths: the call paths of ranges, of spans around them, and of groups around these.
        path: the call path of each range.
        names: the last name of each path.
        path_kind: the kind of each path's ranges; the group of a GPU has its kind, that of a
            process -1.
        work: the work of each range, as an index into WORKS.
    """

    def __init__(
        self, processes: Sequence[Process], other_processes: Sequence[Process] = ()
    ) -> None:
        self.processes = processes
        self.other_processes = other_processes
        columns = join_columns(processes)
        self.lanes = columns.lanes
        self.spans = columns.spans

        ranges = columns.ranges
        self.process = ranges.process
        self.row = ranges.row
        self.lane = ranges.lane
        self.label = ranges.label
        self.parent = ranges.parent
        self.start_ns = ranges.start_ns
        self.total_ns = ranges.total_ns
        self.self_ns = ranges.self_ns
        self.cpu_ns = ranges.cpu_ns
        self.allocated = ranges.allocated
        self.large = ranges.large
        self.kind = ranges.kind
        self.activity = ranges.activity
        self.step = ranges.step
        self.is_step = ranges.is_step
        self.is_open = ranges.is_open
        self.overlaps = ranges.overlaps
        self.enclosing_span = ranges.enclosing_span

        found = recorded_paths(processes, columns)
        self.labels = found.labels
        self.paths = found.paths
        self.path_kind = found.kind
        self.work = found.work
        self.path = found.paths.row_path[: len(self)]
        self.names = [self.labels[label] for label in self.paths.label.tolist()]

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def end_ns(self) -> Numbers:
        """The end of each range, in Unix nanoseconds."""
        return np.asarray(self.start_ns + self.total_ns)

    @cached_property
    def begin_ns(self) -> int:
        """The first begin of a range or span, from which the time line counts."""
        return int(min(self.start_ns.min(), self.spans.start_ns.min(initial=INT64.stop - 1)))

    @property
    def is_marker(self) -> Mask:
        """Whether each range stands in a device's lane, but is no work of it."""
        return np.asarray((self.activity >= Activity.KERNEL) & ~np.isin(self.activity, WORK))

    @cached_property
    def takes_thread_time(self) -> Mask:
        """Whether each range took the time of a thread: others overlap their neighbours, or ran
        on a GPU.
        """
        return np.asarray(~self.overlaps & (self.kind != GPU))

    @cached_property
    def has_cpu_time(self) -> Mask:
        """Whether each range took the time of a thread, and it is known how long that worked."""
        return np.asarray((self.cpu_ns >= 0) & self.takes_thread_time)

    @cached_property
    def parent_in_thread(self) -> Numbers:
        """The parent of each range, if it ran in the same thread; otherwise -1."""
        return np.where((self.parent >= 0) & (self.lane == self.lane[self.parent]), self.parent, -1)

    @cached_property
    def pauses(self) -> Amounts:
        """The nanoseconds from the end of each range until the next one begins beside it in its
        thread; 0 for the last.
        """
        order = np.lexsort((self.start_ns, self.parent, self.lane))
        before = order[:-1]
        after = order[1:]
        follows = (self.lane[before] == self.lane[after]) & (
            self.parent[before] == self.parent[after]
        )
        pause = np.maximum(self.start_ns[after] - self.end_ns[before], 0)
        pauses = np.zeros(len(order), np.int64)
        pauses[before] = np.where(follows, pause, 0)
        return pauses

    def length_ns(self, process: int) -> int:
        """The time from the first begin to the last end in a process."""
        ran = (self.process == process) & ~self.is_marker
        first = self.start_ns[ran].min(initial=INT64.stop - 1)
        return max(int(self.end_ns[ran].max(initial=0) - first), 1)

    @cached_property
    def sums_by_path(self) -> PathSums:
        """The sums of the ranges by path."""
        return self.sums_by(self.path, len(self.names))

    def sums_by(self, group: Indices, groups: int) -> PathSums:
        """The sums of the ranges by group, given the number of each range's group."""
        waited = np.zeros(len(self), np.int64)  # no report shows the sums of waiting
        columns = Ranges(self.row, self.parent, self.total_ns, self.self_ns, waited)
        return range_sums(group, groups, columns)

    def longest_of(self, group: Indices, groups: int) -> Indices:
        """The longest range of each group, given the number of each range's group; -1 of those
        without ranges.
        """
        longest = np.full(groups, -1, np.int64)
        order = np.argsort(self.total_ns, kind="stable")
        longest[group[order]] = order
        return longest

    def begin_offsets(self, ranges: Indices) -> Numbers:
        """The nanoseconds from the begin of the time line to that of each range; 0 for -1."""
        return np.where(ranges >= 0, self.start_ns[ranges] - self.begin_ns, 0)

    def has_name(self, is_wanted: Callable[[str], bool]) -> Mask:
        """Whether each range has a wanted name."""
        return np.array([is_wanted(name) for name in self.names], np.bool_)[self.path]

    def outermost(self, is_wanted: Callable[[str], bool]) -> Indices:
        """The ranges of wanted names that are in no other such range, and took the time of a
        thread: no time counts twice.
        """
        wanted = [is_wanted(name) for name in self.names]
        inside: list[bool] = []
        for parent in self.paths.parent.tolist():
            inside.append(parent >= 0 and (inside[parent] or wanted[parent]))
        are_outermost = np.array(wanted, np.bool_) & ~np.array(inside, np.bool_)
        return np.flatnonzero(are_outermost[self.path] & self.takes_thread_time)

    def nearest(self, ranges: Indices, mask: Mask) -> Indices:
        """The nearest range in the mask for each of these ranges: itself, or one around it in its
        thread; -1 if there is none.

        These may be -1, too.
        """
        return np.where(ranges >= 0, nearest(self.parent_in_thread, mask)[ranges], -1)

    def main_path(self, ranges: Indices, amounts: Amounts) -> int:
        """The path for which the amounts of these ranges add up to most."""
        sums = np.zeros(len(self.names), np.int64)
        np.add.at(sums, self.path[ranges], amounts)
        return int(sums.argmax())

    def names_in(self, path: int) -> tuple[str, ...]:
        """The names of a path, the outermost first."""
        names: list[str] = []
        while path >= 0:
            names.append(self.names[path])
            path = int(self.paths.parent[path])
        return tuple(reversed(names))

    def module_or_name(self, position: int) -> str:
        """The name by which users know a range: of a module's call the path in its model, such as
        ``layers.5``, with its class if that is a number; else the range's own.
        """
        path = self.text_in_column("module", position)
        if path and path.replace(".", "").isdigit():
            return f"{self.module_class(position)} {path}"
        return path or self.names[int(self.path[position])]

    def module_class(self, position: int) -> str:
        """The class of the module that a range is a call of."""
        name = self.names[int(self.path[position])]
        return self.text_in_column("module_class", position) or class_in_name(name)

    def text_in_column(self, column: str, position: int) -> str:
        """The text of a range in this column of its batch."""
        batch = self.processes[self.process[position]].batch
        return str(batch.names[getattr(batch, column)[self.row[position]]])
