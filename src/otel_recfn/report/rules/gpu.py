"""The rules about a GPU: the program waits for it, or makes it ready."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.device_use import busy_time
from otel_recfn.report.finding import (
    GPU_START,
    GPU_WAITS,
    MIN_SHARE,
    Finding,
    busy_share,
    finding_about,
)
from otel_recfn.report.labels import call_count, duration, shorten
from otel_recfn.report.recording import Recording

EARLIER_RANKS = (
    "Give the files of all ranks to otel-recfn report, and make those faster that come late to the"
    " collectives: they wait least."
)
FEWER_COPIES = (
    "Copy less, and while the GPU computes: DataLoader(pin_memory=True), .to(device,"
    " non_blocking=True); make tensors on the GPU."
)
EARLIER_LAUNCHES = (
    "Launch the GPU's next work before you wait: read losses every hundredth step, use"
    " torch.where() in place of masks, and no synchronize() in the loop."
)
WARM_UP = (
    "First calls cost this once: run some steps before you measure, as"
    " torch.profiler.schedule(wait=1, warmup=1, active=3) does."
)


class _Waits(NamedTuple):
    """What is known of the calls that wait for a GPU."""

    calls: int
    in_calls_ns: int
    """The time of these calls, in which the GPU was busy or not."""
    waited_ns: int
    """The part of it in which the GPU was busy."""
    mostly_copies: bool
    mostly_collectives: bool
    run_share: float
    """The share of the run in which the GPU was busy."""

    @property
    def gpu_never_pauses(self) -> bool:
        """Whether the GPU limits the run: it works all the time, and doesn't wait for ranks."""
        return not self.mostly_collectives and 1 - self.run_share < MIN_SHARE


def waits_for_the_gpu(recording: Recording) -> Finding | None:
    """The finding that the program waits in calls for what its GPU computes or copies, whatever
    operator calls them.

    If the GPU never pauses, its work has to be made shorter; otherwise the program has to wait
    less.
    """
    ranges = np.flatnonzero(recording.device_use.waited_ns)
    if not len(ranges):
        return None
    times = recording.device_use.waited_ns[ranges]
    waits = _Waits(
        calls=len(ranges),
        in_calls_ns=recording.device_use.calls_ns[ranges].sum(),
        waited_ns=times.sum(),
        mostly_copies=2 * _time_during(recording, ranges, Activity.MEMCPY) > times.sum(),
        mostly_collectives=2 * _time_during(recording, ranges, Activity.COLLECTIVE) > times.sum(),
        run_share=busy_share(recording),
    )
    found = finding_about(
        recording,
        ranges,
        times,
        rule=GPU_WAITS,
        title="Waits for the GPU",
        text=_text(waits),
        next_step=_next_step(recording, waits),
    )
    # A program whose GPU always works is as fast as its kernels: to wait for them is no fault.
    if found is not None and waits.gpu_never_pauses:
        return found._replace(serious=False)
    return found


def _time_during(recording: Recording, ranges: Indices, activity: Activity) -> int:
    """The time in these ranges in which the GPU had this activity."""
    busy = busy_time(recording, 0, [activity])
    return int(busy.time_during(recording.start_ns[ranges], recording.end_ns[ranges]).sum())


def _text(waits: _Waits) -> str:
    mostly = ""
    if waits.mostly_copies:
        mostly = ", mostly with copies"
    elif waits.mostly_collectives:
        mostly = ", mostly with collectives, in which it may wait for other ranks"
    return (
        f"The program waits for {duration(waits.in_calls_ns)} in {call_count(waits.calls)}, most of"
        f" it in {{most}}; the GPU was busy for {waits.waited_ns / waits.in_calls_ns:.0%} of"
        f" that{mostly}, and for {waits.run_share:.0%} of the run."
    )


def _next_step(recording: Recording, waits: _Waits) -> str:
    if waits.gpu_never_pauses:
        return f"Make the GPU's work shorter, as it hardly pauses: {_longest_on_gpu(recording)}."
    if waits.mostly_collectives:
        return EARLIER_RANKS
    return FEWER_COPIES if waits.mostly_copies else EARLIER_LAUNCHES


def _longest_on_gpu(recording: Recording) -> str:
    """The work that took a GPU longest, by name."""
    work = np.flatnonzero(np.isin(recording.activity, WORK))
    ns = np.bincount(recording.label[work], recording.total_ns[work])
    share = ns.max() / ns.sum()
    return f"begin with {shorten(recording.labels[int(ns.argmax())])}, {share:.0%} of its work"


def starts_the_gpu(recording: Recording) -> Finding | None:
    """The finding that the GPU was made ready, which is no fault: a process does so once."""
    ranges = np.flatnonzero(recording.device_use.first_use_ns)
    if not len(ranges):
        return None
    times = recording.device_use.first_use_ns[ranges]
    main = recording.names_in(recording.main_path(ranges, times))[-1]
    return finding_about(
        recording,
        ranges,
        times,
        rule=GPU_START,
        title="CUDA's first use" if main.startswith("cu") else "The GPU's first use",
        text=(
            f"{call_count(len(ranges))} took {duration(times.sum())} to make the GPU ready, which"
            " had nothing to do meanwhile, most of it in {most}: a process makes its context, and"
            " loads libraries and kernels, when it first uses them."
        ),
        next_step=WARM_UP,
        serious=False,
    )
