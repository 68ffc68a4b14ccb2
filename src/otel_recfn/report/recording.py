"""The recording that a report shows: its ranges, and what follows from all of them together.

    processes ──► columns.py ──► paths.py ──► RecordedRanges    ranges, their columns and call paths
                                                   │
    thread_time.py   the time of the run    ◄──────┤
    device_use.py    the use of devices     ◄──────┘

Each of these is made once, when it is first asked for.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.batches.wall import Wall, wall_time
from otel_recfn.report.device_use import DeviceUse, device_use
from otel_recfn.report.kinds import NO_WORK, WORKS
from otel_recfn.report.nesting import Mask
from otel_recfn.report.ranges import RecordedRanges
from otel_recfn.report.shared_time import LONGEST_PAUSE_NS, SharedTime, Times
from otel_recfn.report.thread_time import in_working_threads, run_time


class Recording(RecordedRanges):
    """The ranges of processes, with the time that they had of the run."""

    @cached_property
    def _does_work(self) -> Mask:
        """Whether each range is work: no block or Python function around it."""
        return np.array([work not in NO_WORK for work in WORKS], np.bool_)[self.work]

    @cached_property
    def in_working_threads(self) -> Mask:
        """Whether each range takes the time of a thread that works. Others, as a progress bar's
        monitor, only wait. If no thread of a process works, all of them count.
        """
        return in_working_threads(self, self._does_work)

    @cached_property
    def shared_time(self) -> SharedTime:
        """The time of the run, shared among the ranges: 0 for those that take no thread's time,
        and for those in threads that don't work.

        The whole time is that of all processes together.
        """
        return run_time(self, self.in_working_threads, self._does_work)

    @cached_property
    def walls(self) -> list[Wall]:
        """The wall time of each process: that of the block or, if that isn't known, from the first
        begin of a range to the last end.
        """
        return [
            wall_time(process.batch, process.block, samples=process.samples)
            for process in self.processes
        ]

    @cached_property
    def whole_ns(self) -> int:
        """The wall time of all processes together."""
        return max(sum(wall.ns for wall in self.walls), 1)

    @cached_property
    def run_ns(self) -> int:
        """The time in which the program ran: the wall time if all blocks are known. Otherwise the
        program may have waited for requests, and of each pause between ranges a part counts.
        """
        are_known = all(process.block is not None for process in self.processes)
        return self.whole_ns if are_known else self.shared_time.whole_ns

    def share(self, ranges: Indices, times: Times | Amounts) -> float:
        """The share of the wall time that these times of ranges are together, at most 1.

        A moment in which other threads work, too, counts in part.
        """
        return min(self._shared_ns(ranges, times) / self.whole_ns, 1.0)

    def run_share(self, ranges: Indices, times: Times | Amounts) -> float:
        """The same of the time in which the program ran."""
        return min(self._shared_ns(ranges, times) / self.run_ns, 1.0)

    def _shared_ns(self, ranges: Indices, times: Times | Amounts) -> float:
        shared = self.shared_time.with_inner_ns[ranges] / np.maximum(self.total_ns[ranges], 1)
        return float((times * shared).sum())

    @cached_property
    def step_ns(self) -> int:
        """The time of all steps in which their threads were recorded; 0 if there are no steps."""
        steps = [step for wall in self.walls for thread in wall.threads for step in thread.steps]
        return sum(step.wall_ns - step.outside_ns for step in steps)

    def step_share(self, ranges: Indices, times: Times | Amounts) -> float:
        """The share of the recorded time of steps that these times are, at most 1; without steps
        that of the time in which the program ran. Where it is known how long these ranges and the
        steps worked, that is compared.
        """
        if not self.step_ns:
            return self.run_share(ranges, times)
        steps = np.flatnonzero(self.is_step & self.takes_thread_time)
        known = self.cpu_ns[np.append(steps, ranges)]
        if len(steps) and bool((known > 0).all()):
            return min(float(known[len(steps) :].sum()) / float(known[: len(steps)].sum()), 1.0)
        return min(float(times.sum()) / self.step_ns, 1.0)

    def thread_share(self, ranges: Indices, times: Times | Amounts) -> float:
        """The share that these times are of the time of the ranges' threads: of outermost ranges,
        with short pauses between.
        """
        lanes = np.zeros(len(self.lanes), np.bool_)
        lanes[self.lane[ranges]] = True
        outermost = (self.parent < 0) & self.takes_thread_time & lanes[self.lane]
        pauses = np.minimum(self.pauses[outermost], LONGEST_PAUSE_NS)
        whole_ns = int(self.total_ns[outermost].sum() + pauses.sum())
        return min(float(times.sum()) / max(whole_ns, 1), 1.0)

    @cached_property
    def device_use(self) -> DeviceUse:
        """The use that the processes make of their devices."""
        return device_use(self)

    def device_call_times(self, ranges: Indices) -> Amounts:
        """The time that each of these ranges was in calls into a device's runtime; none of them
        is inside another.
        """
        is_wanted = np.zeros(len(self), np.bool_)
        is_wanted[ranges] = True
        calls = np.flatnonzero(self.device_use.calls_ns)
        enclosing = self.nearest(calls, is_wanted)
        times = np.zeros(len(self), np.int64)
        np.add.at(times, enclosing[enclosing >= 0], self.device_use.calls_ns[calls[enclosing >= 0]])
        return np.asarray(times[ranges])
