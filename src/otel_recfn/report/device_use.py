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

from otel_recfn.batches.busy_time import BusyTime
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


def device_use(recorded: RecordedRanges) -> DeviceUse:
    """The use that the processes of a recording make of their devices.

    Of calls into a device's runtime only the outermost count.
    """
    busy = [busy_time(recorded, process, WORK) for process in range(len(recorded.processes))]
    use = DeviceUse(busy, *[np.zeros(len(recorded), np.int64) for _ in range(3)])
    is_call = (recorded.activity == Activity.RUNTIME) & recorded.takes_thread_time
    calls = np.flatnonzero(is_call)
    calls = calls[recorded.nearest(recorded.parent_in_thread[calls], is_call) < 0]
    copying = recorded.outermost((SYNCS | COPIES).__contains__)
    for process in range(len(recorded.processes)):
        in_process = calls[recorded.process[calls] == process]
        if len(in_process):
            _add_calls(use, recorded, in_process, busy[process])
        else:
            _add_operators(
                use, recorded, copying[recorded.process[copying] == process], busy[process]
            )
    return use


def _add_calls(use: DeviceUse, recorded: RecordedRanges, calls: Indices, busy: BusyTime) -> None:
    """Add the times of a process' calls into the runtime of its device."""
    names = [recorded.names[path] for path in recorded.path[calls].tolist()]
    columns = DeviceCalls(recorded.start_ns[calls], recorded.end_ns[calls], names)
    use.waited_ns[calls] = waited_times(columns, busy)
    use.first_use_ns[calls] = first_use_times(columns, busy)
    use.calls_ns[calls] = recorded.total_ns[calls]


def _add_operators(
    use: DeviceUse, recorded: RecordedRanges, operators: Indices, busy: BusyTime
) -> None:
    """Add the times of a process' operators that copy: a trace without the runtime's calls has
    only the operators around these.
    """
    long = operators[recorded.total_ns[operators] >= LONG_LAUNCH_NS]
    use.waited_ns[long] = busy.time_during(recorded.start_ns[long], recorded.end_ns[long])
    use.calls_ns[long] = use.waited_ns[long]


def busy_time(recorded: RecordedRanges, process: int, activities: Sequence[Activity]) -> BusyTime:
    """The time in which the devices of a process had these activities."""
    on_device = (recorded.process == process) & np.isin(recorded.activity, activities)
    return BusyTime(recorded.start_ns[on_device], recorded.end_ns[on_device])


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
    return np.where(waits, busy.time_during(calls.start_ns, calls.end_ns), 0)


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
    idle_ns = lengths - busy.time_during(calls.start_ns, calls.end_ns)
    return np.where((is_early | _matches(calls, _LOADS)) & (idle_ns >= LONG_CALL_NS), idle_ns, 0)


def _matches(calls: DeviceCalls, pattern: re.Pattern[str]) -> Mask:
    known = {name: pattern.search(name) is not None for name in {*calls.name}}
    return np.array([known[name] for name in calls.name], np.bool_)
