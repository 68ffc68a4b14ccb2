"""Which threads of a recording work, and whose time the run's time is.

``shared_time`` shares the time of one process among ranges of threads. Here is what a recording
has to find out for that:

    ranges that take no thread's time    overlap others, or ran on a GPU          no part of it
    threads that only wait               a progress bar's monitor                 no part of it
    Python functions and blocks          hold any work, or wait for it            after others
    calls of modules that mostly wait    for other threads, as CPU times say      after others
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.number_sets import nearest
from otel_recfn.report.kinds import MODULE
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.ranges import RecordedRanges
from otel_recfn.report.shared_time import SharedTime, ThreadRanges, shared_time

MIN_WORK = 0.01
"""The minimum share of its time that a thread works, if it runs blocks or Python functions alone
and doesn't only wait: monitors and queues' threads wake up now and then."""


def in_working_threads(recorded: RecordedRanges, does_work: Mask) -> Mask:
    """Whether each range takes the time of a thread that works: one with operators, modules and
    the like, or with a CPU time that says so.

    If no thread of a process works, all of them count.

    Args:
        recorded: the ranges.
        does_work: whether each is work: no block or Python function.
    """
    known = np.flatnonzero(recorded.has_cpu_time)
    lane = recorded.lane[known]
    worked = np.bincount(lane, recorded.cpu_ns[known], len(recorded.lanes))
    ran = np.bincount(lane, recorded.total_ns[known], len(recorded.lanes))
    works = worked > MIN_WORK * ran
    works[recorded.lane[does_work & recorded.takes_thread_time]] = True
    has_working_lanes = np.zeros(len(recorded.processes), np.bool_)
    has_working_lanes[
        [process for lane, (process, _) in enumerate(recorded.lanes) if works[lane]]
    ] = True
    counts = works[recorded.lane] | ~has_working_lanes[recorded.process]
    return np.asarray(recorded.takes_thread_time & counts)


def run_time(recorded: RecordedRanges, counts: Mask, does_work: Mask) -> SharedTime:
    """The time of the run, shared among the ranges that count; others have none.

    The whole time is that of all processes together.

    Args:
        recorded: the ranges.
        counts: whether each is in a thread that works.
        does_work: whether each is work: no block or Python function.
    """
    own_ns = np.zeros(len(recorded))
    with_inner_ns = np.zeros(len(recorded))
    whole_ns = 0
    works = does_work & ~_waiting_modules(recorded)
    inside = _usual_range_in_thread(recorded)
    for process in range(len(recorded.processes)):
        in_process = (recorded.process == process) & counts
        ranges = np.flatnonzero(in_process & (recorded.total_ns > 0))
        position = np.full(len(recorded) + 1, -1, np.int64)  # the last entry is for no range, -1
        position[ranges] = np.arange(len(ranges))
        times = (recorded.start_ns[ranges], recorded.end_ns[ranges])
        parent = position[inside[ranges]]
        shared = shared_time(ThreadRanges(recorded.lane[ranges], *times, parent, works[ranges]))
        own_ns[ranges] = shared.own_ns
        with_inner_ns[ranges] = shared.with_inner_ns
        whole_ns += shared.whole_ns
    return SharedTime(own_ns, with_inner_ns, max(whole_ns, 1))


def _usual_range_in_thread(recorded: RecordedRanges) -> Numbers:
    """The nearest range around each in its thread that takes time of that; -1 if there is none.

    It may be around ranges of other threads, which are passed a thread at a time.
    """
    parent = recorded.parent
    if not len(parent):
        return parent
    usual = recorded.takes_thread_time & (recorded.total_ns > 0)
    enclosing = np.where(parent >= 0, nearest(parent, usual)[parent], -1)
    is_outermost = (enclosing < 0) | (recorded.lane[enclosing] != recorded.lane)
    outermost = nearest(enclosing, is_outermost)
    found: Numbers = enclosing.copy()
    while len(others := np.flatnonzero((found >= 0) & (recorded.lane[found] != recorded.lane))):
        found[others] = enclosing[outermost[found[others]]]
    return found


def _waiting_modules(recorded: RecordedRanges) -> Mask:
    """Whether each range is a module's call that is known to have waited for most of the time
    that it has for itself.
    """
    known = recorded.has_cpu_time
    waited = np.where(known, np.maximum(recorded.total_ns - recorded.cpu_ns, 0), 0)
    own = recorded.total_ns.copy()
    own_waited = waited.copy()
    timed = np.flatnonzero(known)
    enclosing = recorded.nearest(recorded.parent_in_thread[timed], known)
    inner = timed[enclosing >= 0]
    np.subtract.at(own, enclosing[enclosing >= 0], recorded.total_ns[inner])
    np.subtract.at(own_waited, enclosing[enclosing >= 0], waited[inner])
    return np.asarray(known & (recorded.kind == MODULE) & (2 * own_waited > own))
