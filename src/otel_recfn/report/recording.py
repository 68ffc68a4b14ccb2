"""The recording that a report shows: the ranges of its processes as columns, and their sums by call path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.averages import Nesting, nesting
from otel_recfn.batches.call_paths import (
    Amounts,
    Paths,
    PathSums,
    Ranges,
    call_paths,
    sums_of_ranges,
)
from otel_recfn.batches.call_tree import ranges_of
from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.batches.number_sets import Places, distinct
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING, EventSource, RecordScope, RowKind
from otel_recfn.report.nesting import Mask, Numbers

KINDS = (
    "operator",
    "backward",
    "module",
    "step or block of yours",
    "Python call",
    "compilation",
    "GPU",
)
"""The kinds of ranges, each of which has a colour."""
OPERATOR, BACKWARD, MODULE, BLOCK, PYTHON, COMPILATION, GPU = range(len(KINDS))
_KIND_OF_SOURCE = {
    EventSource.MODULE: MODULE,
    EventSource.RECORD_FUNCTION: BLOCK,
    EventSource.STEP: BLOCK,
    EventSource.PYTHON_CALL: PYTHON,
    EventSource.COMPILATION: COMPILATION,
}
ON_GPU = "on the GPU"
"""The name of the group around what a GPU did, as its time isn't the program's."""
MOST_LOOKED_AT = 1000
"""The most ranges whose lines of Python are looked up."""
LONGEST_PAUSE_NS = 10_000_000
"""The most of a pause between outermost ranges that counts as the program's work: the rest may be waiting for requests."""
LARGE_BLOCK = 1 << 20
"""The least bytes of a block that memory allocators give back to the system, so that each new one is paged in anew."""
LONGEST_NAME = 240
_NUMBERED = re.compile(r"(.+)#\d+")


class Process(NamedTuple):
    """A process, or rank, with what it recorded."""

    label: str
    """The name by which a report tells it from others."""
    batch: Batch


class Recording:
    """The ranges of processes, one process after the other: columns with an entry for each range.

    Args:
        processes: in their batches a row stands before the one that it lies in, as a drain closes them.

    Attributes:
        process: index into ``processes``.
        row: in the batch of the process.
        lane: index into ``lanes``, which have process and name of each thread.
        label: index into ``labels``; ranges that differ by their number alone, as steps do, have one.
        above: the range that it lies in; -1 at the top.
        self_ns: without the ranges in it.
        cpu_ns: the time that its thread worked; -1 where that isn't known.
        allocated: bytes that PyTorch allocated in it, without the ranges in it.
        large: the part of them in large blocks.
        kind: index into KINDS.
        step: a step's number; -1 of others.
        overlaps: whether it may overlap what is beside it in its thread.
        path: its path in ``paths``, which has groups around each process, where there are several, and around its GPU.
        names: the last name of each path.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self.processes = processes
        self.lanes: list[tuple[int, str]] = []
        labels: dict[str, int] = {}
        parts: list[dict[str, Numbers]] = []
        count = 0
        for number, (_, batch) in enumerate(processes):
            part = _columns_of_batch(batch)
            rows = part["row"]
            part["process"] = np.full(len(rows), number)
            part["label"] = _labels_of_rows(batch, rows, labels)
            part["lane"] = batch.thread[rows].astype(np.int64) + len(self.lanes)
            part["above"] = np.where(part["above"] >= 0, part["above"] + count, -1)
            parts.append(part)
            self.lanes += [
                (number, short(track.name) or f"thread {track.native_id or track.number}")
                for track in batch.tracks
            ]
            count += len(rows)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.process, self.row, self.lane, self.label = [
            columns[name] for name in ("process", "row", "lane", "label")
        ]
        self.above, self.start_ns, self.total_ns = (
            columns["above"],
            columns["start_ns"],
            columns["total_ns"],
        )
        self.self_ns, self.cpu_ns, self.kind = (
            columns["self_ns"],
            columns["cpu_ns"],
            columns["kind"],
        )
        self.allocated, self.large, self.step = (
            columns["allocated"],
            columns["large"],
            columns["step"],
        )
        self.overlaps = columns["overlaps"] != 0
        self.labels = list(labels)
        self.paths = self._call_paths()
        self.path = self.paths.of_row[: len(self)]
        self.names = [self.labels[label] for label in self.paths.label.tolist()]

    def _call_paths(self) -> Paths:
        """The paths of all ranges; in ``of_row`` the groups stand behind the ranges."""
        above, groups = self.above.copy(), list[tuple[str, int]]()
        for number, process in enumerate(self.processes):
            inside, of_process = -1, (self.above < 0) & (self.process == number)
            on_gpu = of_process & (self.kind == GPU)
            if len(self.processes) > 1:
                above[of_process] = inside = len(self) + len(groups)
                groups.append((process.label, -1))
            if bool(on_gpu.any()) and not bool(on_gpu[of_process].all()):
                above[on_gpu] = len(self) + len(groups)
                groups.append((ON_GPU, inside))
        labels = np.append(self.label, len(self.labels) + np.arange(len(groups)))
        self.labels += [label for label, _ in groups]
        return call_paths(
            np.append(above, [inside for _, inside in groups]).astype(np.int64), labels
        )

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def end_ns(self) -> Numbers:
        """The end of each range, in Unix nanoseconds."""
        return np.asarray(self.start_ns + self.total_ns)

    @cached_property
    def takes_thread_time(self) -> Mask:
        """Whether each range took the time of a thread: others overlap their neighbours, or ran on a GPU."""
        return np.asarray(~self.overlaps & (self.kind != GPU))

    @cached_property
    def above_in_thread(self) -> Numbers:
        """The range that each lies in, if that ran in the same thread; else -1."""
        return np.where((self.above >= 0) & (self.lane == self.lane[self.above]), self.above, -1)

    @cached_property
    def pauses(self) -> Amounts:
        """The nanoseconds from the end of each range until the next one begins beside it in its thread; 0 for the last."""
        order = np.lexsort((self.start_ns, self.above, self.lane))
        before, after = order[:-1], order[1:]
        beside = (self.lane[before] == self.lane[after]) & (self.above[before] == self.above[after])
        pauses = np.zeros(len(order), np.int64)
        pauses[before] = np.where(
            beside, np.maximum(self.start_ns[after] - self.end_ns[before], 0), 0
        )
        return pauses

    @cached_property
    def whole_ns(self) -> int:
        """The whole time: that of the outermost ranges of all threads, with short pauses between them."""
        outermost = (self.above < 0) & self.takes_thread_time
        pauses = np.minimum(self.pauses[outermost], LONGEST_PAUSE_NS)
        return max(int(self.total_ns[outermost].sum() + pauses.sum()), 1)

    def share(self, times: Amounts) -> float:
        """The share of the whole time that these times are together, at most 1."""
        return min(float(times.sum()) / self.whole_ns, 1.0)

    @cached_property
    def path_kind(self) -> Numbers:
        """The kind of each path's ranges; the group of a GPU has its kind, that of a process -1."""
        kind = np.array([GPU if name == ON_GPU else -1 for name in self.names], np.int64)
        kind[self.path] = self.kind
        return kind

    @cached_property
    def sums_by_path(self) -> PathSums:
        """The sums of the ranges by path."""
        return self.sums_by(self.path, len(self.names))

    def sums_by(self, group: Places, groups: int) -> PathSums:
        """The sums of the ranges by group, given the number of each range's group."""
        waited = np.zeros(len(self), np.int64)  # which nobody asks for
        return sums_of_ranges(
            group, groups, Ranges(self.row, self.above, self.total_ns, self.self_ns, waited)
        )

    def has_name(self, is_wanted: Callable[[str], bool]) -> Mask:
        """Whether each range has a wanted name."""
        return np.array([is_wanted(name) for name in self.names], np.bool_)[self.path]

    def outermost(self, is_wanted: Callable[[str], bool]) -> Places:
        """The ranges of wanted names that lie in no other such range, and took the time of a thread: no time counts twice."""
        wanted = [is_wanted(name) for name in self.names]
        inside: list[bool] = []
        for above in self.paths.above.tolist():
            inside.append(above >= 0 and (inside[above] or wanted[above]))
        are_outermost = np.array(wanted, np.bool_) & ~np.array(inside, np.bool_)
        return np.flatnonzero(are_outermost[self.path] & self.takes_thread_time)

    def main_path(self, ranges: Places, amounts: Amounts) -> int:
        """The path for which the amounts of these ranges add up to most."""
        sums = np.zeros(len(self.names), np.int64)
        np.add.at(sums, self.path[ranges], amounts)
        return int(sums.argmax())

    def names_in(self, path: int) -> tuple[str, ...]:
        """The names of a path, the outermost first."""
        names: list[str] = []
        while path >= 0:
            names.append(self.names[path])
            path = int(self.paths.above[path])
        return tuple(reversed(names))

    def nearest(self, ranges: Places, mask: Mask) -> Places:
        """The nearest range that the mask has, for each of these: itself, or one around it in its thread; else -1."""
        found = np.array(ranges)
        while len(at := np.flatnonzero((found >= 0) & ~mask[found])):
            found[at] = self.above_in_thread[found[at]]
        return found

    def text_in_column(self, column: str, place: int) -> str:
        """The text of a range in this column of its batch."""
        batch = self.processes[self.process[place]].batch
        return str(batch.names[getattr(batch, column)[self.row[place]]])

    def main_line(self, ranges: Places, amounts: Amounts) -> str:
        """The line of Python, ``file(line): function``, for which the amounts of these ranges add up to most; empty if none is
        known. The line of a range is the innermost one outside of PyTorch, or else that of the range around it."""
        longest = np.argsort(-amounts, kind="stable")[:MOST_LOOKED_AT]
        sums: Counter[str] = Counter()
        for place, amount in zip(ranges[longest].tolist(), amounts[longest].tolist(), strict=True):
            line = ""
            while place >= 0 and not line:
                texts = [
                    self.text_in_column(column, place) for column in ("call_site", "stack", "code")
                ]
                line = next(
                    (each for text in texts for each in text.splitlines() if "/torch/" not in each),
                    "",
                )
                place = int(self.above[place])
            sums[line] += amount
        sums.pop("", None)
        return max(sums, key=lambda line: sums[line], default="")


def _columns_of_batch(batch: Batch) -> dict[str, Numbers]:
    """The columns of a recording that follow from the batch of one process."""
    nested = nesting(batch)
    ranges = ranges_of(batch, nested)
    rows = ranges.rows
    return {
        "row": rows,
        "above": ranges.above,
        "start_ns": batch.start_ns[rows],
        "total_ns": ranges.durations,
        "self_ns": ranges.self_ns,
        "cpu_ns": batch.cpu_time_ns[rows],
        "allocated": _allocated_bytes(batch, nested, 1)[rows],
        "large": _allocated_bytes(batch, nested, LARGE_BLOCK)[rows],
        "kind": _kinds(batch, rows),
        "step": batch.step_number[rows],
        "overlaps": batch.flags[rows] & OVERLAPPING,
    }


def _allocated_bytes(batch: Batch, nested: Nesting, least: int) -> Numbers:
    """The bytes that were allocated directly in each row, in blocks of at least so many."""
    allocated = np.zeros(len(batch), np.int64)
    reports = (batch.kind[nested.child] == RowKind.MEMORY) & (batch.nbytes[nested.child] >= least)
    np.add.at(allocated, nested.parent[reports], batch.nbytes[nested.child[reports]])
    return allocated


def _kinds(batch: Batch, rows: Places) -> Numbers:
    is_node = np.array([name.startswith(NODES_PREFIX) for name in batch.names], np.bool_)
    kind = np.full(len(rows), OPERATOR, np.int64)
    kind[(batch.scope[rows] == RecordScope.BACKWARD_FUNCTION) | is_node[batch.name[rows]]] = (
        BACKWARD
    )
    kind[(kind == OPERATOR) & (batch.scope[rows] == RecordScope.USER_SCOPE)] = BLOCK
    for source, number in _KIND_OF_SOURCE.items():
        kind[batch.source[rows] == source] = number
    kind[batch.device[rows] != 0] = GPU
    return kind


def _labels_of_rows(batch: Batch, rows: Places, labels: dict[str, int]) -> Numbers:
    """The labels of these rows as numbers; ``labels`` has those of all processes, and gets the new ones."""
    found = np.zeros(len(batch.names), np.int64)
    for index in distinct(batch.name[rows]).tolist():
        found[index] = labels.setdefault(label_of(batch.names[index]), len(labels))
    return found[batch.name[rows]]


def label_of(name: str) -> str:
    """The label of ranges of that name: those that differ only by their number, as steps do, have one."""
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered else name or "(no name)"


def short(name: str) -> str:
    """The beginning of a name, no longer than a page shows it."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
