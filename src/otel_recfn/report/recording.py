"""What a report is made of: the ranges of a process, nested and summed up by call path once for all who ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.averages import nesting
from otel_recfn.batches.call_paths import Amounts, call_paths, sums_of_ranges
from otel_recfn.batches.call_tree import ranges_of
from otel_recfn.batches.number_sets import Places, distinct, is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING, EventKind
from otel_recfn.report.process import Process
from otel_recfn.report.rows import labels_of

Mask = NDArray[np.bool_]
MOST_LOOKED_AT = 1000
"""Ranges whose lines of Python are looked up."""
LONGEST_PAUSE_NS = 10_000_000
"""Of the time between two outermost ranges this much counts as the program's own work; the rest of it may be idleness, as a
server's between two requests is."""


class Recording:
    """The ranges of a process.

    Args:
        process: what it recorded. A row stands before the one that it lies in, as a drain closes them.
    """

    def __init__(self, process: Process) -> None:
        self.label, self.batch = process.label, _of_the_cpu(process.batch)
        self.ranges = ranges_of(self.batch, nesting(self.batch))
        labels: dict[str, int] = {}
        label = labels_of(self.batch, self.ranges.rows, labels)
        self.paths, texts = call_paths(self.ranges.above, label), list(labels)
        self.names = [texts[index] for index in self.paths.label.tolist()]
        """The last name of each path; numbered steps have one."""
        self.sums = sums_of_ranges(self.paths.of_row, len(self.names), self.ranges)

    def outermost(self, is_wanted: Callable[[str], bool]) -> Mask:
        """The paths that end with such a name and lie in no other one: no time counts twice."""
        wanted = self.named(is_wanted)
        inside: list[bool] = []
        for above in self.paths.above.tolist():
            inside.append(above >= 0 and (inside[above] or bool(wanted[above])))
        return wanted & ~np.array(inside, np.bool_)

    def named(self, is_wanted: Callable[[str], bool]) -> Mask:
        """The paths that end with such a name."""
        return np.array([is_wanted(name) for name in self.names], np.bool_)

    def ranges_of(self, paths: Mask) -> Places:
        """The ranges of these paths that took the time of a thread: others overlap what is beside them."""
        return np.flatnonzero(paths[self.paths.of_row] & self.synchronous)

    def main_path(self, ranges: Places, amounts: Amounts) -> tuple[str, ...]:
        """The path for which the amounts of these ranges add up to most."""
        sums = np.zeros(len(self.names), np.int64)
        np.add.at(sums, self.paths.of_row[ranges], amounts)
        return self.path(int(sums.argmax())) if len(ranges) else ()

    def nearest(self, ranges: Places, mask: Mask) -> Places:
        """Of each of these ranges, the innermost one around it in its thread for which the mask is set; else -1."""
        above, thread = self.ranges.above, self.column("thread")
        found, waiting, reached = np.full(len(ranges), -1, np.int64), np.arange(len(ranges)), above[ranges]
        while len(waiting):
            inside = (reached >= 0) & (thread[reached] == thread[ranges[waiting]])
            waiting, reached = waiting[inside], reached[inside]
            hit = mask[reached]
            found[waiting[hit]] = reached[hit]
            waiting, reached = waiting[~hit], above[reached[~hit]]
        return found

    def hold(self, ranges: Places, parents: NDArray[np.uint64]) -> Mask:
        """Which of these ranges have one of the parents, by event id, in them or are one."""
        holders = np.flatnonzero(is_in(self.batch.event_id[self.ranges.rows], parents))
        found = np.zeros(len(self.ranges.rows), np.bool_)
        while len(holders):
            found[holders] = True
            holders = self.ranges.above[holders]
            holders = distinct(holders[holders >= 0])
            holders = holders[~found[holders]]
        return found[ranges]

    def share(self, times: Amounts) -> float:
        """Of the whole time."""
        return min(float(times.sum()) / self.whole_ns, 1.0)

    def code(self, ranges: Places, amounts: Amounts) -> str:
        """The line of Python, ``file(line): function``, for which the amounts of these ranges add up to most; empty where none
        is on record. It is the innermost one outside of PyTorch, or else what a range around it is a call of."""
        longest = np.argsort(-amounts, kind="stable")[:MOST_LOOKED_AT]
        sums: Counter[str] = Counter()
        for place, amount in zip(ranges[longest].tolist(), amounts[longest].tolist(), strict=True):
            line = ""
            while place >= 0 and not line:
                line, place = self._own_line(place), int(self.ranges.above[place])
            sums[line] += amount
        sums.pop("", None)
        return max(sums, key=lambda line: sums[line], default="")

    def _own_line(self, place: int) -> str:
        row = self.ranges.rows[place]
        texts = [self.batch.names[getattr(self.batch, name)[row]] for name in ("call_site", "stack", "code")]
        return next((line for text in texts for line in text.splitlines() if "/torch/" not in line), "")

    def path(self, path: int) -> tuple[str, ...]:
        """Its names, the outermost first."""
        names: list[str] = []
        while path >= 0:
            names.append(self.names[path])
            path = int(self.paths.above[path])
        return tuple(reversed(names))

    def column(self, name: str) -> NDArray[np.int64]:
        """A column of the batch, of each range."""
        return np.asarray(getattr(self.batch, name)[self.ranges.rows]).astype(np.int64)

    @cached_property
    def synchronous(self) -> Mask:
        """Which ranges ran one after the other in their thread."""
        return np.asarray(self.column("flags") & OVERLAPPING == 0)

    @cached_property
    def pauses(self) -> Amounts:
        """Of each range, the nanoseconds until the next one begins beside it in its thread; 0 for the last."""
        thread, start, end = self.column("thread"), self.column("start_ns"), self.column("end_ns")
        order = np.lexsort((start, self.ranges.above, thread))
        before, after = order[:-1], order[1:]
        beside = (thread[before] == thread[after]) & (self.ranges.above[before] == self.ranges.above[after])
        pauses = np.zeros(len(order), np.int64)
        pauses[before] = np.where(beside, np.maximum(start[after] - end[before], 0), 0)
        return pauses

    @cached_property
    def whole_ns(self) -> int:
        """The time that shares are of: that of the outermost ranges of all threads, with short pauses between them."""
        counted = (self.ranges.above < 0) & self.synchronous
        pauses = np.minimum(self.pauses[counted], LONGEST_PAUSE_NS)
        return max(int(self.ranges.durations[counted].sum() + pauses.sum()), 1)


def _of_the_cpu(batch: Batch) -> Batch:
    """What a GPU does, it does beside the program, whose time this isn't."""
    on_gpu = (batch.kind == EventKind.RANGE) & (batch.device != 0)
    return batch.take(~on_gpu) if on_gpu.any() else batch
