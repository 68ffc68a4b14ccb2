"""The rules about operators.

    tiny_operators    a loop calls operators that take less than 20 us each
    synchronises      operators give values of tensors to Python
    copies            operators copy tensors, and take longer than 20 us each
    churns            operators make large tensors over and over

Each is given the recording of one process, and returns its finding, or None.
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices, distinct
from otel_recfn.model.events import NODES_PREFIX
from otel_recfn.report.finding import Finding, finding_about
from otel_recfn.report.kinds import COPIES, SYNCS
from otel_recfn.report.labels import call_count, duration, shorten
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules.loops import MIN_LOOP_CALLS, NO_LOOP, enclosing_loops
from otel_recfn.report.rules.worked_time import worked_share

TINY_NS = 20_000
"""The time below which an operator computes next to nothing: calling one takes 3 to 10 us, on a
busy machine twice that.
"""
LONGEST_CALL_NS = 50_000
"""The maximum part of the pause after an operator that counts as calling the next one: the rest is
the program's own work.
"""
CALLS_PER_SYNC = 4
"""The maximum number of a loop's calls to each that asks for a value, if the loop asks for one of
each element.
"""
MIN_SYNCS = 32
"""The minimum number of calls that ask for values: a program that reads its loss now and then has
fewer."""
READS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"}
"""The operators that read one value, and compute nothing."""
LONG_READ_NS = 100_000
"""The minimum time of a read that waits for a device. One of memory that is there takes 1 to 5 us;
what interrupts a thread for longer is too rare for a tenth of the time.
"""
MAKERS = (
    "aten::empty",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::new_",
    "aten::cat",
    "aten::clone",
    "aten::resize_",
)
"""The beginnings of the names of operators that compute nothing, but make tensors."""

WHOLE_TENSORS = (
    "Compute on whole tensors in place of loops over elements; in optimizers set fused=True or"
    " foreach=True; or torch.compile what is called."
)
VALUES_IN_TENSORS = (
    "Keep values in tensors: torch.where() in place of if and of masks, sums in place of .item() in"
    " loops; read losses every hundredth step."
)
LATER_READS = (
    "Launch the device's next work before you read: read losses every hundredth step, or a step"
    " later. torch.profiler records the device's work, and otel-recfn report reads its trace."
)
ONE_DTYPE = (
    "Cast or move once, before the loop; keep tensors in one dtype and layout (channels_last for"
    " convolutions), and give operators what they want."
)
REUSE = (
    "Make them once and write into them (out=, copy_(), index_copy_()); let a list or a cache grow"
    " in blocks."
)


def tiny_operators(recording: Recording) -> Finding | None:
    """The finding that a loop calls operators on so little data that calls take longer than
    computing.

    Loops that ask for values are another rule's.
    """
    ranges = recording.outermost(_is_operator)
    is_tiny = ~recording.has_name(SYNCS.__contains__) & (recording.total_ns < TINY_NS)
    ranges = ranges[is_tiny[ranges]]
    loops = enclosing_loops(recording, ranges)
    # A loop asks for values if every fourth of its operators does. Index 0 counts operators that
    # are in no range.
    enclosing = recording.parent[ranges]
    asked_in = recording.parent[recording.outermost(SYNCS.__contains__)]
    asked = np.bincount(asked_in + 1, minlength=len(recording) + 1)[enclosing + 1]
    asks = asked * CALLS_PER_SYNC >= _times_found(enclosing)
    counted = (loops != NO_LOOP) & ~asks
    ranges = ranges[counted]
    loops = loops[counted]
    times = _times_with_calls(recording, ranges) + _times_of_callers(recording, ranges, loops)
    return finding_about(
        recording,
        ranges,
        times,
        rule="tiny",
        title="Many tiny operators",
        text=(
            f"{len(ranges):,} operators in loops take {duration(times.sum() / max(len(ranges), 1))}"
            f" each, most of it to call them; most are {{most}}."
            f"{_main_loop(recording, loops, times)}"
        ),
        next_step=WHOLE_TENSORS,
        run_share=worked_share(recording, ranges, times),
    )


def _main_loop(recording: Recording, loops: Numbers, times: Amounts) -> str:
    """The sentence that names the range in which the operators of loops take most time; empty if
    they are outermost.
    """
    of_ranges = loops < len(recording)
    if not bool(of_ranges.any()):
        return ""
    main = recording.main_path(loops[of_ranges], times[of_ranges])
    is_main = recording.path[loops[of_ranges]] == main
    main_loops = distinct(loops[of_ranges][is_main])
    name = shorten(recording.module_or_name(int(main_loops[0])))
    calls = int(is_main.sum()) // len(main_loops)
    return f" The loop is in `{name}`, which calls {calls:,} each time."


def _times_found(numbers: Indices) -> Amounts:
    """The number of times that each of these numbers is among them."""
    _, member, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray(counts[member])


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(NODES_PREFIX)


def _times_with_calls(recording: Recording, ranges: Indices) -> Amounts:
    """The time of each of these operators, with that of calling the next one."""
    return np.asarray(
        recording.total_ns[ranges] + np.minimum(recording.pauses[ranges], LONGEST_CALL_NS)
    )


def _times_of_callers(recording: Recording, ranges: Indices, loops: Numbers) -> Amounts:
    """The time that calls between a loop and its operators take for themselves, as those of a cell
    do, divided among the operators in each.
    """
    call_ns = np.minimum(recording.pauses, LONGEST_CALL_NS)
    is_counted = np.zeros(len(recording), np.bool_)
    is_counted[ranges] = True
    levels = []
    callers = np.where(recording.parent[ranges] != loops, recording.parent[ranges], -1)
    while bool((callers >= 0).any()):
        levels.append(callers)
        is_counted[callers[callers >= 0]] = True
        callers = np.where(callers >= 0, recording.parent[callers], loops)
        callers = np.where(callers != loops, callers, -1)
    inner = np.flatnonzero(is_counted & (recording.parent >= 0))
    inner_ns = np.bincount(recording.parent[inner], call_ns[inner], len(recording))
    own_ns = np.clip(recording.self_ns - inner_ns, 0, LONGEST_CALL_NS) + call_ns
    times = np.zeros(len(ranges))
    for callers in levels:
        inside = np.flatnonzero(callers >= 0)
        called = np.bincount(callers[inside], minlength=len(recording))
        times[inside] += own_ns[callers[inside]] / called[callers[inside]]
    return times.astype(np.int64)


def synchronises(recording: Recording) -> Finding | None:
    """The finding that Python asks for values of tensors, without the time in which a GPU has to
    compute them first.
    """
    ranges = recording.outermost(SYNCS.__contains__)
    if len(ranges) < MIN_SYNCS:
        return _waits_for_a_device(recording)
    return finding_about(
        recording,
        ranges,
        _times_with_calls(recording, ranges) - recording.device_call_times(ranges),
        rule="sync",
        title="Asks tensors for their values",
        text=(
            f"{len(ranges):,} calls hand a value to Python; most of their time is in {{most}}. On a"
            " GPU each waits until all that was launched before is done."
        ),
        next_step=VALUES_IN_TENSORS,
    )


def _waits_for_a_device(recording: Recording) -> Finding | None:
    """The finding that few reads of a value take longer than a read can: they wait for a device
    whose work isn't in the recording.

    It isn't known whether the device ever pauses, so they may be no fault.
    """
    ranges = recording.outermost(READS.__contains__)
    times = recording.total_ns[ranges] - recording.device_call_times(ranges)
    is_long = times >= LONG_READ_NS
    mean_ns = times[is_long].mean() if bool(is_long.any()) else 0.0
    return finding_about(
        recording,
        ranges[is_long],
        times[is_long],
        rule="sync",
        title="Waits for a device",
        text=(
            f"{call_count(int(is_long.sum()))} that read a value took {duration(mean_ns)} each,"
            " most of it in {most}. To read one takes some microseconds, so they waited for what a"
            " device had to compute before."
        ),
        next_step=LATER_READS,
        serious=False,
    )


def copies(recording: Recording) -> Finding | None:
    """The finding that the CPU copies tensors to another dtype or layout.

    Copies that take no longer than a call are tiny operators, those inside of an operator are how
    it works, and copies by a GPU are work of the GPU.
    """
    ranges = recording.outermost(_is_operator)
    ranges = ranges[recording.has_name(COPIES.__contains__)[ranges]]
    times = recording.total_ns[ranges] - recording.device_call_times(ranges)
    is_long = times >= TINY_NS
    return finding_about(
        recording,
        ranges[is_long],
        times[is_long],
        rule="copy",
        title="Copies and casts",
        text=(
            f"{int(is_long.sum()):,} copies of tensors to another dtype, device or layout; most of"
            " their time is in {most}."
        ),
        next_step=ONE_DTYPE,
    )


def churns(recording: Recording) -> Finding | None:
    """The finding that large tensors are made and freed over and over, which is known only if
    memory is recorded.
    """
    is_maker = np.zeros(len(recording), np.bool_)
    is_maker[recording.outermost(lambda name: name.startswith(MAKERS))] = True
    ranges = recording.nearest(np.flatnonzero(recording.large), is_maker)
    ranges = distinct(ranges[ranges >= 0])
    if len(ranges) < MIN_LOOP_CALLS:
        return None
    return finding_about(
        recording,
        ranges,
        recording.total_ns[ranges] - recording.device_call_times(ranges),
        rule="memory",
        title="Makes large tensors over and over",
        text=(
            f"{len(ranges):,} operators only make large tensors, most of the time in {{most}}:"
            f" {recording.large.sum() / (1 << 30):,.1f} GiB were allocated in blocks of 1 MiB or"
            " more."
        ),
        next_step=REUSE,
    )
