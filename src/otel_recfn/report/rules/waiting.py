"""The rule about a CPU that waits for no reason on record, or for other threads of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices, distinct, is_in
from otel_recfn.batches.sampled_functions import waits_for_work
from otel_recfn.model.batch import Sample
from otel_recfn.model.events import MIN_WAIT_NS, OTHER_PROCESSES
from otel_recfn.report.finding import SERIOUS_SHARE, WAITING, Finding, finding_about
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules.worked_time import loads_or_compiles, own_waits
from otel_recfn.report.shared_time import Times

FEWER_THREADS = (
    "Have fewer threads of Python, as one alone has the GIL, and fewer threads than cores"
    " (OMP_NUM_THREADS)."
)
NOT_ON_RECORD = (
    " It isn't on record what held them up: they slept, or waited for a lock, a file or the GIL; or"
    " other programs had the cores."
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

    Another program may have had its core, or it may have waited for work. So it is serious only as
    far as samples say that it waited for another thread of this program. Its share is of the
    threads' time, as many of them may wait at once while the run continues.
    """
    ranges, waited = own_waits(recording)
    share = recording.thread_share(ranges, waited)
    if share < SERIOUS_SHARE or waited.sum() < MIN_WAIT_NS:
        return None
    waits = _SampledWaits.in_ranges(recording, ranges)
    text = (
        f"They neither worked nor loaded data for {duration(waited.sum())}, most of it in {{most}}."
        f"{waits.sentence or _not_on_record(recording, ranges, waited)}"
    )
    held_up = (waited * waits.held_up_shares(recording.path[ranges])).astype(np.int64)
    held_up_share = recording.thread_share(ranges, held_up)
    if held_up_share >= SERIOUS_SHARE:
        return _held_up(recording, ranges, held_up, held_up_share, text)
    return _stands_still(recording, ranges, waited, share, text)


class _SampledWaits(NamedTuple):
    """What threads waited for in ranges, as samples found them."""

    whole_ns: Amounts
    """The sampled waits of each call path."""
    held_up_ns: Amounts
    """The part of them in which the thread waited for another one of the program, which had the
    GIL, a lock or the cores. A thread that waits for the work of others isn't held up.
    """
    sentence: str
    """What they waited for most, with a space before; empty if nothing is known."""

    @classmethod
    def in_ranges(cls, recording: Recording, ranges: Indices) -> _SampledWaits:
        """The waits in these ranges, and in others inside them."""
        whole_ns = np.zeros(len(recording.names), np.int64)
        held_up_ns = whole_ns.copy()
        times: Counter[str] = Counter()
        for sample, path in _samples_with_paths(recording, ranges):
            whole_ns[path] += sample.duration_ns
            if sample.waits_for_thread and not waits_for_work(sample.name):
                held_up_ns[path] += sample.duration_ns
            times[sample.waits_for] += sample.duration_ns
        shares = [
            f"{_quoted(name)} ({each / times.total():.0%})"
            for name, each in times.most_common(MAX_NAMES)
        ]
        sentence = f" Samples say what they waited for: {', '.join(shares)}." if shares else ""
        return cls(whole_ns, held_up_ns, sentence)

    def held_up_shares(self, paths: Indices) -> Times:
        """The share of the waits of each of these call paths for which its threads were held up; of
        a path that no sample found, that of all waits.
        """
        overall = self.held_up_ns.sum() / max(self.whole_ns.sum(), 1)
        found = self.held_up_ns[paths] / np.maximum(self.whole_ns[paths], 1)
        return np.where(self.whole_ns[paths] > 0, found, overall)


def _samples_with_paths(recording: Recording, ranges: Indices) -> Iterator[tuple[Sample, int]]:
    """The samples of threads that wait in these ranges, each with the call path of the innermost
    one around it.
    """
    process = recording.processes[0]
    waiting = [sample for sample in process.samples if sample.waits_for and sample.parent]
    ids = process.batch.event_id[recording.row]
    sampled = np.flatnonzero(is_in(ids, [sample.parent for sample in waiting]))
    is_counted = np.zeros(len(recording), np.bool_)
    is_counted[ranges] = True
    innermost = recording.nearest(sampled, is_counted | loads_or_compiles(recording))
    counted = is_counted[innermost] & (innermost >= 0)
    path = recording.path[innermost[counted]]
    paths = dict(zip(ids[sampled[counted]].tolist(), path.tolist(), strict=True))
    for sample in waiting:
        if sample.parent in paths:
            yield sample, paths[sample.parent]


def _quoted(name: str) -> str:
    return name if name == OTHER_PROCESSES else f"`{shorten(name)}`"


def _not_on_record(recording: Recording, ranges: Indices, waited: Amounts) -> str:
    """The sentences on waits of which no sample says what they were for."""
    meanwhile_ns = int(np.minimum(waited, _worked_meanwhile(recording, ranges)).sum())
    if meanwhile_ns < MIN_WAIT_NS:
        return NOT_ON_RECORD
    return (
        f"{NOT_ON_RECORD} For {duration(meanwhile_ns)} of it, other threads of this program worked."
    )


def _held_up(
    recording: Recording, ranges: Indices, times: Amounts, share: float, text: str
) -> Finding | None:
    """The finding that threads waited for others of this program."""
    return finding_about(
        recording,
        ranges,
        times,
        share=share,
        rule=WAITING,
        title="Threads hold each other up",
        text=f"{text} For {duration(times.sum())} of it, other threads held them up.",
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
