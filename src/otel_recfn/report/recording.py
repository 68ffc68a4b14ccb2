"""The recording that a report shows: its ranges, and what follows from all of them together.

    processes ──► columns.py ──► paths.py ──► RecordedRanges    ranges, their columns and call paths
                                                   │
    kinds.py         the work of each path  ◄──────┤
    thread_time.py   the time of the run    ◄──────┤
    device_use.py    the use of devices     ◄──────┘

Each of these is made once, when it is first asked for.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.device_use import DeviceUse, device_use
from otel_recfn.report.kinds import NO_WORK, path_works
from otel_recfn.report.nesting import Mask
from otel_recfn.report.ranges import RecordedRanges
from otel_recfn.report.shared_time import LONGEST_PAUSE_NS, SharedTime, Times
from otel_recfn.report.thread_time import in_working_threads, run_time


class Recording(RecordedRanges):
    """The ranges of processes, with the time that they had of the run."""

    @cached_property
    def path_work(self) -> list[str]:
        """The work of each path; empty for blocks."""
        return path_works(self.names, self.path_kind, self.paths.parent)

    @cached_property
    def _does_work(self) -> Mask:
        """Whether each range is work: no block or Python function around it."""
        return np.array([work not in NO_WORK for work in self.path_work], np.bool_)[self.path]

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

    @property
    def whole_ns(self) -> int:
        """The whole time of the run."""
        return self.shared_time.whole_ns

    def share(self, ranges: Indices, times: Times | Amounts) -> float:
        """The share of the whole time that these times of ranges are together, at most 1.

        A moment in which other threads work, too, counts in part.
        """
        shared = self.shared_time.with_inner_ns[ranges] / np.maximum(self.total_ns[ranges], 1)
        return min(float((times * shared).sum()) / self.whole_ns, 1.0)

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
