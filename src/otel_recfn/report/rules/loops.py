"""Loops of Python: ranges in which the same call path comes over and over, at any depth.

    nn.Module: Reader         the loop: the paths below come 2,000 times in it
      nn.Module: Cell         a call of a cell is none, as each path comes once in it
        aten::addmm
        aten::tanh
      nn.Module: Cell
        aten::addmm
        ...

A range around several steps, such as an epoch, is no loop: each step has to run.
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.number_sets import Indices
from otel_recfn.model.events import OPTIMIZER_STEP
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.recording import Recording

MIN_LOOP_CALLS = 64
"""The minimum number of calls of one path in one range that are a loop over elements, parameters or
moments: layers are fewer.
"""
MIN_CALLS_BELOW = 1000
"""The minimum number of operators in a loop that isn't directly around them. These take 10 ms or
more to call, and a loop over some blocks of a model has fewer.
"""
MAX_LEVELS = 100
"""The maximum number of ranges between a loop and an operator in it."""
NO_LOOP = -1


def enclosing_loops(recording: Recording, ranges: Indices) -> Numbers:
    """The innermost loop around each of these ranges: the number of its range or, beyond these, of
    the thread in which they are outermost; NO_LOOP if there is none.
    """
    order = np.lexsort((recording.start_ns[ranges], recording.lane[ranges], recording.path[ranges]))
    path = recording.path[ranges][order]
    parent = recording.parent[ranges][order]
    thread = len(recording) + recording.lane[ranges][order]
    directly_in = np.where(parent >= 0, parent, thread)
    found = np.where(_run_lengths(path, directly_in) >= MIN_LOOP_CALLS, directly_in, NO_LOOP)
    is_large = _counts_below(recording, parent) >= MIN_CALLS_BELOW
    is_large &= ~_around_steps(recording)
    enclosing = parent
    for _ in range(MAX_LEVELS):
        enclosing = np.where(enclosing >= 0, recording.parent[enclosing], -1)
        if not bool((enclosing >= 0).any()):
            break
        in_loop = (_run_lengths(path, enclosing) >= MIN_LOOP_CALLS) & is_large[enclosing]
        found = np.where((found == NO_LOOP) & (enclosing >= 0) & in_loop, enclosing, found)
    loops = np.empty(len(ranges), np.int64)
    loops[order] = found
    return loops


def _run_lengths(*columns: Numbers) -> Numbers:
    """The number of entries in a row, around each and with it, that have the same values."""
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    run = np.append(0, np.cumsum(changes))[: len(columns[0])]
    return np.asarray(np.bincount(run)[run])


def _counts_below(recording: Recording, parents: Numbers) -> Numbers:
    """The number of ranges in each range, at any depth, given the parents of these ranges."""
    counts = np.zeros(len(recording), np.int64)
    enclosing = parents[parents >= 0]
    for _ in range(MAX_LEVELS):
        if not len(enclosing):
            break
        counts += np.bincount(enclosing, minlength=len(counts))
        enclosing = recording.parent[enclosing]
        enclosing = enclosing[enclosing >= 0]
    return counts


def _around_steps(recording: Recording) -> Mask:
    """Whether each range is around several steps, of optimizers if it is no step itself."""
    steps = np.flatnonzero(recording.is_step)
    optimizers = recording.outermost(lambda name: name.startswith(OPTIMIZER_STEP))
    inner_steps = _counts_below(recording, recording.parent[steps])
    inner_optimizers = _counts_below(recording, recording.parent[optimizers])
    return np.asarray((inner_steps > 1) | ((inner_optimizers > 1) & ~recording.is_step))
