"""The rule about a module that takes far longer than its siblings: modules of the same class that
the same module or block calls, such as the layers of a transformer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.finding import Finding, finding_about
from otel_recfn.report.kinds import MODULE
from otel_recfn.report.labels import call_count, duration, shorten
from otel_recfn.report.recording import Recording

MIN_TIMES_LONGER = 5
"""The minimum ratio to the median of the siblings. Layers alike differ by less than two, those of a
model that halves its images, or by what else runs on the machine, by two to four.
"""
MIN_SIBLINGS = 3
"""The minimum number of siblings: two others have no usual time."""
SIZED_CLASSES = (
    "Bilinear",
    "Conv",
    "Embedding",
    "GRU",
    "Identity",
    "LSTM",
    "LazyConv",
    "LazyLinear",
    "Linear",
    "RNN",
    "Sequential",
    "Dropout",
)
"""The beginnings of PyTorch's classes whose modules differ in size, or in what they hold, within
healthy models: a classifier's last layer may be a hundred times as large as the others.
"""
NEXT_STEP = (
    "Look at what it does that the others don't: record the line with profile(with_stack=True), or"
    " the calls in it with profile(python_calls=True)."
)


class _Module(NamedTuple):
    """The calls of a module at one place."""

    kind: str
    """Its class."""
    calls: Indices
    times: Amounts
    """The time that each call worked or, if that isn't known, took."""
    usual_ns: float


def is_slow_sibling(recording: Recording) -> Finding | None:
    """The finding that a module takes five times the median of its siblings."""
    slow = [
        (module, siblings)
        for group in _siblings(recording)
        for module, siblings in _with_others(recording, group)
        if module.usual_ns >= MIN_TIMES_LONGER * max(siblings, 1.0)
    ]
    if not slow:
        return None
    module, siblings_ns = max(slow, key=lambda each: int(each[0].times.sum()))
    name = shorten(recording.module_or_name(int(module.calls[0])))
    ratio = module.usual_ns / max(siblings_ns, 1.0)
    found = finding_about(
        recording,
        module.calls,
        module.times,
        rule="sibling",
        title=f"`{name}` takes {ratio:,.0f} times as long as its siblings",
        text=(
            f"{call_count(len(module.calls))} of {{most}} took {duration(module.usual_ns)} each,"
            f" while the others of class {module.kind} beside it took {duration(siblings_ns)}."
        ),
        next_step=NEXT_STEP,
    )
    if found is not None and module.kind.startswith(SIZED_CLASSES):
        return found._replace(serious=False)
    return found


def _siblings(recording: Recording) -> Iterator[list[_Module]]:
    """The groups of modules of one class that are called at one place, if they are enough."""
    calls = np.flatnonzero((recording.kind == MODULE) & recording.takes_thread_time)
    module = recording.processes[0].batch.module[recording.row[calls]].astype(np.int64)
    order = np.lexsort((recording.start_ns[calls], module, recording.path[calls]))
    calls = calls[order]
    # A module is known by its path in the model, or has a name of its own.
    is_other = np.diff(recording.path[calls]) | np.diff(module[order])
    groups: dict[tuple[int, str], list[Indices]] = defaultdict(list)
    for ranges in np.split(calls, np.flatnonzero(is_other) + 1) if len(calls) else ():
        place = int(recording.paths.parent[recording.path[ranges[0]]])
        groups[place, recording.module_class(int(ranges[0]))].append(ranges)
    for (_, kind), group in groups.items():
        if len(group) > MIN_SIBLINGS:
            times = _times(recording, group)
            yield [_module(kind, ranges, times[ranges]) for ranges in group]


def _times(recording: Recording, group: list[Indices]) -> Amounts:
    """The time that ranges worked, if it is known of this group: what else runs on the machine
    doesn't change it. Otherwise the time that they took.
    """
    is_known = all(bool((recording.cpu_ns[ranges] >= 0).all()) for ranges in group)
    return recording.cpu_ns if is_known else recording.total_ns


def _module(kind: str, calls: Indices, times: Amounts) -> _Module:
    # First calls make what later ones have: threads, memory, compiled kernels.
    return _Module(kind, calls, times, float(np.median(times[1:] if len(times) > 1 else times)))


def _with_others(recording: Recording, group: list[_Module]) -> Iterator[tuple[_Module, float]]:
    """The modules of a group, each with the median of the others.

    If they were called once, the one that was called first has no part in it.
    """
    first = min(group, key=lambda module: int(recording.start_ns[module.calls[0]]))
    if len(first.calls) == 1:
        group = [module for module in group if module is not first]
    for module in group:
        others = [other.usual_ns for other in group if other is not module]
        yield module, float(np.median(others))
