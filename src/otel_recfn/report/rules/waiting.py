"""The rule about a CPU that waits for no reason on record."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices, distinct
from otel_recfn.model.events import MIN_WAIT_NS, OTHER_PROCESSES
from otel_recfn.report.finding import SERIOUS_SHARE, WAITING, Finding, finding_about
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules.worked_time import own_waits

FEWER_THREADS = (
    "Have fewer threads of Python, as one alone has the GIL, and fewer threads than cores"
    " (OMP_NUM_THREADS)."
)
NOT_ON_RECORD = (
    " Nothing on record held them up: they slept, or waited for a lock, a file or the GIL; or other"
    " programs had the cores."
)
MAX_NAMES = 3
"""The maximum number of things that a finding says threads waited for."""
RECORD_AGAIN = (
    "Record it again on a machine without other work. If it stays, profile(python_calls=True) shows"
    " what waits."
)


def is_idle(recording: Recording) -> Finding | None:
    """The finding that a thread in a module call or step neither worked nor loaded data nor
    compiled.

    Another program may have had its core, which a trace can't tell but for samples: it is serious
    only as far as other threads of this program worked meanwhile. Its share is of the threads'
    time, as many of them may wait at once while the run continues.
    """
    ranges, waited = own_waits(recording)
    share = recording.thread_share(ranges, waited)
    if share < SERIOUS_SHARE or waited.sum() < MIN_WAIT_NS:
        return None
    text = (
        f"They neither worked nor loaded data for {duration(waited.sum())}, most of it in {{most}}."
    )
    waits = _SampledWaits.of_recording(recording)
    own_fault = np.minimum(waited, _worked_meanwhile(recording, ranges))
    if waits.whole_ns:
        own_fault = (waited * (waits.for_threads_ns / waits.whole_ns)).astype(np.int64)
    own_share = recording.thread_share(ranges, own_fault)
    if own_share >= SERIOUS_SHARE:
        return _held_up(recording, ranges, own_fault, own_share, text + waits.sentence)
    reason = waits.sentence or NOT_ON_RECORD
    return _stands_still(recording, ranges, waited, share, text + reason)


class _SampledWaits(NamedTuple):
    """What threads waited for in ranges, as samples found them."""

    whole_ns: int
    for_threads_ns: int
    """The time of it in which other threads of the program worked."""
    sentence: str
    """What they waited for most, with a space before; empty if nothing is known."""

    @classmethod
    def of_recording(cls, recording: Recording) -> _SampledWaits:
        """The waits of all processes."""
        waiting = [
            sample
            for process in recording.processes
            for sample in process.samples
            if sample.waits_for and sample.parent
        ]
        times: Counter[str] = Counter()
        for sample in waiting:
            times[sample.waits_for] += sample.duration_ns
        threads = [sample.duration_ns for sample in waiting if sample.waits_for_thread]
        whole_ns = times.total()
        shares = [
            f"{_quoted(name)} ({each / whole_ns:.0%})"
            for name, each in times.most_common(MAX_NAMES)
        ]
        sentence = f" Samples say what they waited for: {', '.join(shares)}." if shares else ""
        return cls(whole_ns, sum(threads), sentence)


def _quoted(name: str) -> str:
    return name if name == OTHER_PROCESSES else f"`{shorten(name)}`"


def _held_up(
    recording: Recording, ranges: Indices, times: Amounts, share: float, text: str
) -> Finding | None:
    """The finding that threads waited while others of this program worked."""
    return finding_about(
        recording,
        ranges,
        times,
        share=share,
        rule=WAITING,
        title="Threads hold each other up",
        text=f"{text} For {duration(times.sum())} of it, other threads of this program worked.",
        next_step=FEWER_THREADS,
        serious=True,
    )


def _stands_still(
    recording: Recording, ranges: Indices, times: Amounts, share: float, text: str
) -> Finding | None:
    """The finding that threads waited for something that isn't on record."""
    return finding_about(
        recording,
        ranges,
        times,
        share=share,
        rule=WAITING,
        title="Threads stand still",
        text=text,
        next_step=RECORD_AGAIN,
        serious=False,
    )


def _worked_meanwhile(recording: Recording, ranges: Indices) -> Amounts:
    """The CPU time of other threads while each of these ranges ran, as if they worked evenly from
    begin to end of outermost ranges whose CPU time is known.
    """
    outermost = ranges[
        recording.nearest(recording.parent_in_thread[ranges], recording.has_cpu_time) < 0
    ]
    outermost = outermost[np.argsort(recording.start_ns[outermost], kind="stable")]
    first_ns = recording.start_ns[ranges].min(initial=0)  # floats of Unix times would be inexact
    start_ns = recording.start_ns[ranges] - first_ns
    end_ns = recording.end_ns[ranges] - first_ns
    worked = np.zeros(len(ranges))
    for lane in distinct(recording.lane[outermost]).tolist():
        in_lane = outermost[recording.lane[outermost] == lane]
        moments = np.stack([recording.start_ns[in_lane], recording.end_ns[in_lane]], axis=1).ravel()
        moments = moments - first_ns
        steps = np.stack([np.zeros(len(in_lane)), recording.cpu_ns[in_lane]], axis=1).ravel()
        worked_until = np.cumsum(steps)
        began = np.interp(start_ns, moments, worked_until)
        ended = np.interp(end_ns, moments, worked_until)
        worked += np.where(recording.lane[ranges] != lane, ended - began, 0)
    return worked.astype(np.int64)
