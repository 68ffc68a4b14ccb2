"""Runs of samples as slices, which lie between the ranges of a thread and between the begins and
ends of the program's spans in it.

    thread   [ aten::mm ][ save: gzip.compress (sampled) ]  [ aten::mm                           ]
                                                               [ waits for spinner-0 (sampled) ]
    spans    ┌ POST /train ─────────────────────────────────────────────────────────────────────┐

In an operation there are slices of what its thread waited for there.

A file that is written while the program runs shows the last runs of each thread, which may go on,
in its tail.
"""

from __future__ import annotations

from collections.abc import Mapping

from otel_recfn.batches.sampled_functions import MAX_THREADS, SampledRun, SampledRuns
from otel_recfn.model.batch import Batch, Sample

AFTER_RANGES_NS = 64
"""The nanoseconds between a range and a run after it: the slice of a span around ranges ends some
after the last of them (``span_slices.py``).
"""


class SampleSlices:
    """The runs of samples in a file."""

    def __init__(self) -> None:
        self._runs = SampledRuns(by_wait=True)
        self._changes: dict[int, int] = {}
        """When a span of the program's began or ended last, by the operating system's id of the
        thread.
        """

    def add(self, batch: Batch) -> list[SampledRun]:
        """Add a batch's samples, and return the runs that are over."""
        changes: dict[int, list[int]] = {thread: [at] for thread, at in self._changes.items()}
        for span in batch.spans:
            changes.setdefault(span.thread.native_id, []).append(span.end_ns or span.start_ns)
        over = self._runs.add([_after_changes(sample, changes) for sample in batch.samples])
        newest = sorted((max(times), thread) for thread, times in changes.items())
        self._changes = {thread: at for at, thread in newest[-MAX_THREADS:]}
        return [run for run in map(_after_ranges, over) if run.length_ns > 0]

    def waiting(self, ends_ns: Mapping[int, int]) -> list[SampledRun]:
        """The runs that may go on, as they are so far, cut at the end of their threads' open
        ranges in the file, by the numbers of these threads.
        """
        found = []
        for run in map(_after_ranges, self._runs.waiting()):
            end_ns = min(run.end_ns, ends_ns.get(run.thread.number, run.end_ns))
            if run.start_ns < end_ns:
                found.append(run._replace(end_ns=end_ns))
        return found


def _after_changes(sample: Sample, changes: Mapping[int, list[int]]) -> Sample:
    """The sample of a run that begins after the begins and ends of spans before it."""
    before = [at for at in changes.get(sample.thread.native_id, ()) if at <= sample.time_ns]
    return sample._replace(since_ns=max([sample.since_ns, *before]))


def _after_ranges(run: SampledRun) -> SampledRun:
    return run._replace(start_ns=max(run.start_ns, run.since_ns + AFTER_RANGES_NS))
