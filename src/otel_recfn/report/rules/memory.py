"""The rule about memory that grows from step to step, which is known only if it is recorded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.finding import GROWTH, Finding
from otel_recfn.report.kinds import BLOCK, MODULE, OPERATOR
from otel_recfn.report.labels import byte_count, shorten
from otel_recfn.report.memory_use import MemoryUse, memory_use
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.python_lines import main_line
from otel_recfn.report.recording import Recording

MIN_GROWING_STEPS = 3
"""The minimum number of steps after the first, which makes gradients and an optimizer's state: less
is no trend.
"""
MIN_GROWING_SHARE = 0.75
"""The minimum share of these steps that end with more memory than the step before: a cache that
fills up or a buffer that is replaced now and then grows in fewer.
"""
MIN_STEP_BYTES = 64 << 10
"""The minimum growth of a step: a gigabyte in 16,000 steps, about as many as a day's run has.
Losses and statistics that a program keeps are far smaller.
"""
SERIOUS_STEP_BYTES = 1 << 20
"""The minimum growth of a step for a serious finding: a gigabyte in a thousand steps."""
NEXT_STEP = (
    "Look for what keeps it: a list, a dictionary or a closure to which each step adds. Keep"
    " loss.item() or x.detach() in place of tensors with their graph, and free what is done."
)


class _Steps(NamedTuple):
    """The steps of a thread, or what takes their place, in order."""

    names: list[str]
    start_ns: Numbers
    end_ns: Numbers


def memory_grows(recording: Recording) -> Finding | None:
    """The finding that each step ends with more memory in use than the one before, and what was
    allocated and stayed.
    """
    if not bool(recording.allocated.any()):
        return None
    use = memory_use(recording, 0)
    steps = _steps(recording)
    in_use = use.at(steps.end_ns)
    growth = np.diff(in_use)
    if len(growth) < MIN_GROWING_STEPS or (growth > 0).mean() < MIN_GROWING_SHARE:
        return None
    step_bytes = int(in_use[-1] - in_use[0]) // len(growth)
    if step_bytes < MIN_STEP_BYTES:
        return None
    left = use.blocks_left(int(steps.end_ns[0]), int(steps.end_ns[-1]))
    ranges, nbytes = _main_ranges(recording, use, left)
    anchor = recording.names_in(int(recording.path[ranges[0]])) if len(ranges) else ()
    maker = _maker(recording, ranges)
    text = (
        f"After {shorten(steps.names[-1])} {byte_count(int(in_use[-1] - in_use[0]))} more were in"
        f" use than after {shorten(steps.names[0])}, {len(growth):,} steps before."
    )
    if maker:
        text += f" Most of what stayed was allocated in {maker}: {byte_count(nbytes.sum())}."
    return Finding(
        title=f"Memory grows by {byte_count(step_bytes)} a step{f', in {maker}' if maker else ''}",
        text=text,
        share=0.0,
        next_step=NEXT_STEP,
        anchor=anchor,
        serious=step_bytes >= SERIOUS_STEP_BYTES,
        code=shorten(main_line(recording, ranges, nbytes)) if len(ranges) else "",
        rule=GROWTH,
    )


def _steps(recording: Recording) -> _Steps:
    """The steps of the thread that has most of them. Without steps, the outermost ranges that come
    most often: calls of a model, or requests.
    """
    threads = recording.walls[0].threads
    steps = max((thread.steps for thread in threads), key=len, default=[])
    if steps:
        starts = np.array([step.start_ns for step in steps], np.int64)
        lengths = np.array([step.wall_ns for step in steps], np.int64)
        return _Steps([step.name for step in steps], starts, starts + lengths)
    ranges = np.flatnonzero((recording.parent < 0) & recording.takes_thread_time)
    calls = ranges[np.isin(recording.kind[ranges], (MODULE, BLOCK))]
    ranges = calls if len(calls) else ranges
    main = recording.main_path(ranges, np.ones(len(ranges), np.int64))
    ranges = ranges[recording.path[ranges] == main]
    ranges = ranges[np.argsort(recording.start_ns[ranges], kind="stable")]
    name = recording.names[main]
    names = [f"{name} {number:,}" for number in range(1, len(ranges) + 1)]
    return _Steps(names, recording.start_ns[ranges], recording.end_ns[ranges])


def _main_ranges(recording: Recording, use: MemoryUse, left: Indices) -> tuple[Indices, Amounts]:
    """The ranges of the path that allocated most of the blocks that are left, and the bytes of
    each.
    """
    left = left[use.range[left] >= 0]
    ranges = use.range[left]
    nbytes = use.nbytes[left]
    if not len(ranges):
        return ranges, nbytes
    is_main = recording.path[ranges] == recording.main_path(ranges, nbytes)
    return ranges[is_main], nbytes[is_main]


def _maker(recording: Recording, ranges: Indices) -> str:
    """What allocated: the outermost operator around these ranges, and the module or block that
    called it; empty if it isn't known.
    """
    if not len(ranges):
        return ""
    operator = int(ranges[0])
    caller = int(recording.parent[operator])
    while caller >= 0 and recording.kind[caller] == OPERATOR:
        operator = caller
        caller = int(recording.parent[operator])
    names = [recording.names[int(recording.path[operator])]]
    if caller >= 0:
        names.append(recording.module_or_name(caller))
    return " in ".join([f"`{shorten(name)}`" for name in names])
