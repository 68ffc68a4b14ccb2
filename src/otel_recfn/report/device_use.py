"""The use that processes make of their devices: when these were busy, and which calls waited for
them, or made them ready.

    CPU   ─[ aten::mm ]──[ aten::to                    ]───
             [ launch ]    [ cudaMemcpyAsync          ]        waits: an earlier kernel still runs
    GPU   ──────────[ gemm                     ][copy ]────
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.kinds import COPIES, SYNCS
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.ranges import RecordedRanges

LONG_LAUNCH_NS = 20_000
"""The minimum time of a call that launches a kernel or a copy and waits for the device: a copy from
pageable memory waits, and any launch does if the queue is full. Others take 3 to 10 us, on a busy
machine twice that.
"""
LONG_CALL_NS = 1_000_000
"""The minimum time of a call that frees memory and waits for the device, and of any call that makes
the device ready.
"""
_SYNCHRONISES = re.compile(
    r"synchroni[sz]e|eventswait|eventwait|hostwait|queuefinish", re.IGNORECASE
)
_COPIES = re.compile(r"mem_?cpy|memorycopy", re.IGNORECASE)
_LAUNCHES = re.compile(r"mem_?cpy|memorycopy|launch", re.IGNORECASE)
_GIVES_BACK = re.compile(r"free", re.IGNORECASE)
_LOADS = re.compile(r"module|library|ctxcreate|primaryctx|init\b|launch", re.IGNORECASE)
"""The calls that make a device ready, at whatever time: a kernel is loaded when it is first
launched.
"""
_HOST_MEMORY = re.compile(r"host", re.IGNORECASE)


class DeviceUse(NamedTuple):
    """The use that the processes of a recording make of their devices."""

    busy: list[BusyTime]
    """When the devices of each process were busy."""
    waited_ns: Numbers
    """The time that each range waited for a device, as a column; 0 of ranges around such calls."""
    first_use_ns: Numbers
    """The time that each range took to make a device ready, likewise."""
    calls_ns: Numbers
    """The time of each call that waited or made ready, or of any other call into the runtime,
    likewise.
    """


def device_use(seen: RecordedRanges) -> DeviceUse:
    """The use that the processes of a recording make of their devices.

    Of calls into a device's runtime only the outermost count.
    """
    busy = [busy_time(seen, process, WORK) for process in range(len(seen.processes))]
    use = DeviceUse(busy, *[np.zeros(len(seen), np.int64) for _ in range(3)])
    is_call = (seen.activity == Activity.RUNTIME) & seen.takes_thread_time
    calls = np.flatnonzero(is_call)
    calls = calls[seen.nearest(seen.parent_in_thread[calls], is_call) < 0]
    copying = seen.outermost((SYNCS | COPIES).__contains__)
    for process in range(len(seen.processes)):
        in_process = calls[seen.process[calls] == process]
        if len(in_process):
            _add_calls(use, seen, in_process, busy[process])
        else:
            _add_operators(use, seen, copying[seen.process[copying] == process], busy[process])
    return use


def _add_calls(use: DeviceUse, seen: RecordedRanges, calls: Indices, busy: BusyTime) -> None:
    """Add the times of a process' calls into the runtime of its device."""
    names = [seen.names[path] for path in seen.path[calls].tolist()]
    columns = DeviceCalls(seen.start_ns[calls], seen.end_ns[calls], names)
    use.waited_ns[calls] = waited_times(columns, busy)
    use.first_use_ns[calls] = first_use_times(columns, busy)
    use.calls_ns[calls] = seen.total_ns[calls]


def _add_operators(
    use: DeviceUse, seen: RecordedRanges, operators: Indices, busy: BusyTime
) -> None:
    """Add the times of a process' operators that copy: a trace without the runtime's calls has
    only the operators around these.
    """
    long = operators[seen.total_ns[operators] >= LONG_LAUNCH_NS]
    use.waited_ns[long] = busy.during(seen.start_ns[long], seen.end_ns[long])
    use.calls_ns[long] = use.waited_ns[long]


def busy_time(seen: RecordedRanges, process: int, activities: Sequence[Activity]) -> BusyTime:
    """The time in which the devices of a process had these activities."""
    on_device = (seen.process == process) & np.isin(seen.activity, activities)
    return BusyTime(seen.start_ns[on_device], seen.end_ns[on_device])


class BusyTime:
    """The times when something ran, as stretches that neither overlap nor touch each other."""

    def __init__(self, start_ns: Numbers, end_ns: Numbers) -> None:
        order = np.argsort(start_ns, kind="stable")
        start = start_ns[order]
        end = np.maximum.accumulate(end_ns[order])
        begins = np.append(np.ones(min(len(start), 1), np.bool_), start[1:] > end[:-1])
        self.begin_ns = start[begins]
        self._lengths = end[np.append(begins[1:], begins[:1])] - self.begin_ns
        self._passed = np.append(0, np.cumsum(self._lengths))

    @property
    def total_ns(self) -> int:
        """The time in which something ran."""
        return int(self._passed[-1])

    def during(self, start_ns: Numbers, end_ns: Numbers) -> Numbers:
        """The part of the time from each of these starts to its end in which something ran."""
        return np.asarray(self._until(end_ns) - self._until(start_ns))

    def _until(self, at_ns: Numbers) -> Numbers:
        if not len(self.begin_ns):
            return np.zeros(len(at_ns), np.int64)
        position = np.maximum(np.searchsorted(self.begin_ns, at_ns, side="right") - 1, 0)
        inside = np.clip(at_ns - self.begin_ns[position], 0, self._lengths[position])
        return np.asarray(self._passed[position] + inside)


class DeviceCalls(NamedTuple):
    """The calls of a process into its device's runtime, as columns, none of which lies in
    another.
    """

    start_ns: Numbers
    end_ns: Numbers
    name: Sequence[str]


def waited_times(calls: DeviceCalls, busy: BusyTime) -> Numbers:
    """The time that each call waited for the device: that in which this was busy, if the call
    synchronises, or took longer than to launch something."""
    lengths = calls.end_ns - calls.start_ns
    waits = _matches(calls, _SYNCHRONISES)
    waits |= _matches(calls, _LAUNCHES) & (lengths >= LONG_LAUNCH_NS)
    waits |= _matches(calls, _GIVES_BACK) & (lengths >= LONG_CALL_NS)
    return np.where(waits, busy.during(calls.start_ns, calls.end_ns), 0)


def first_use_times(calls: DeviceCalls, busy: BusyTime) -> Numbers:
    """The time that each call took to make the device ready, while that had nothing to do: calls
    before its first work make its context, and later ones load libraries and kernels.
    """
    begin_ns = busy.begin_ns[0] if len(busy.begin_ns) else np.iinfo(np.int64).max
    is_early = calls.start_ns < begin_ns
    # Which take long also where a device is ready.
    for other in (_SYNCHRONISES, _COPIES, _HOST_MEMORY):
        is_early &= ~_matches(calls, other)
    lengths = calls.end_ns - calls.start_ns
    idle_ns = lengths - busy.during(calls.start_ns, calls.end_ns)
    return np.where((is_early | _matches(calls, _LOADS)) & (idle_ns >= LONG_CALL_NS), idle_ns, 0)


def _matches(calls: DeviceCalls, pattern: re.Pattern[str]) -> Mask:
    known = {name: pattern.search(name) is not None for name in {*calls.name}}
    return np.array([known[name] for name in calls.name], np.bool_)
