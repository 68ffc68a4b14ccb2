"""The time that a program worked: that of its run, without waits for which there is no reason on
record. Other programs may have had the cores meanwhile.

    thread   ─[ nn.Module: Cell                                  ]─    CPU time 40 us of 100
               [add][mm]··· another program has the core ···[tanh]
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.kinds import COMPILATIONS, LOADER
from otel_recfn.report.nesting import Mask
from otel_recfn.report.recording import Recording


def worked_share(recording: Recording, ranges: Indices, times: Amounts) -> float:
    """The share that times of ranges which didn't wait are of the time that the program worked,
    where that is known; otherwise of the time in which it ran.
    """
    waiting, waits = own_waits(recording)
    waited_ns = recording.share(waiting, waits) * recording.whole_ns
    worked_ns = max(recording.run_ns - waited_ns, 1.0)
    return min(recording.share(ranges, times) * recording.whole_ns / worked_ns, 1.0)


def own_waits(recording: Recording) -> tuple[Indices, Amounts]:
    """The ranges whose CPU time is known, outside of loading and compiling, with the time that each
    waited itself.

    A thread that only waits, as a progress bar's monitor, is made for that, and left out.
    """
    known = recording.has_cpu_time & recording.in_working_threads
    waited = np.where(known, np.maximum(recording.total_ns - recording.cpu_ns, 0), 0)
    elsewhere = loads_or_compiles(recording)
    counted = known & (recording.nearest(np.arange(len(recording)), elsewhere) < 0)
    own = waited.copy()
    taken = np.where(known, waited, recording.total_ns)
    inside = np.flatnonzero(counted | elsewhere)
    enclosing = recording.nearest(recording.parent_in_thread[inside], counted)
    np.subtract.at(own, enclosing[enclosing >= 0], taken[inside[enclosing >= 0]])
    timed = np.flatnonzero(counted)
    return timed, np.maximum(own[timed], 0)


def loads_or_compiles(recording: Recording) -> Mask:
    """Whether each range is the outermost one that loads data or compiles."""
    found = np.zeros(len(recording), np.bool_)
    found[recording.outermost(lambda name: name.startswith((LOADER, *COMPILATIONS)))] = True
    return found
