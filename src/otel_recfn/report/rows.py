"""The ranges of all processes as one set of columns: what the flame graph, the time line and the table are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.averages import Nesting, nesting
from otel_recfn.batches.call_paths import Ranges
from otel_recfn.batches.call_tree import ranges_of
from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING, EventKind, EventSource, RecordScope
from otel_recfn.report.process import Process

Numbers = NDArray[np.int64]
KINDS = ("operator", "backward", "module", "step or block of yours", "Python call", "compilation", "GPU")
"""What ranges are coloured by."""
GPU = len(KINDS) - 1
_OF_SOURCE = {
    EventSource.MODULE: 2,
    EventSource.RECORD_FUNCTION: 3,
    EventSource.STEP: 3,
    EventSource.PYTHON_CALL: 4,
    EventSource.COMPILATION: 5,
}
OF_BACKWARD = "autograd::engine::"
_NUMBERED = re.compile(r"(.+)#\d+")


class Rows(NamedTuple):
    """Columns, an entry for each range."""

    process: Numbers
    lane: Numbers
    """Index into ``lanes``."""
    label: Numbers
    """Index into ``labels``."""
    above: Numbers
    """The range that it lies in; -1 at the top."""
    start_ns: Numbers
    total_ns: Numbers
    self_ns: Numbers
    cpu_ns: Numbers
    """What its thread worked; -1 where that isn't known."""
    allocated: Numbers
    """Bytes that PyTorch allocated in it, without the ranges in it."""
    kind: Numbers
    """Index into KINDS."""
    step: Numbers
    """A step's number; -1 of others."""
    overlaps: NDArray[np.bool_]
    """Whether it may overlap what is beside it in its thread."""
    labels: Sequence[str]
    lanes: Sequence[tuple[int, str]]
    """Process and name of each thread."""

    @property
    def ranges(self) -> Ranges:
        """As what sums up by path takes them."""
        waited = np.where(self.cpu_ns >= 0, np.maximum(self.total_ns - self.cpu_ns, 0), 0)
        return Ranges(np.arange(len(self.label)), self.above, self.total_ns, self.self_ns, waited)


def rows_of(processes: Sequence[Process]) -> Rows:
    """The ranges, one process after the other; steps that differ by their number alone have one label."""
    labels: dict[str, int] = {}
    lanes: list[tuple[int, str]] = []
    parts: list[dict[str, Any]] = []
    count = 0
    for number, process in enumerate(processes):
        batch = process.batch
        nested = nesting(batch)
        ranges = ranges_of(batch, nested)
        part = _columns(batch, nested, ranges, labels_of(batch, ranges.rows, labels))
        part |= {"process": np.full(len(ranges.rows), number), "lane": batch.thread[ranges.rows].astype(np.int64) + len(lanes)}
        part["above"] = np.where(ranges.above >= 0, ranges.above + count, -1)
        parts.append(part)
        lanes += [(number, track.name or f"thread {track.native_id or track.number}") for track in batch.tracks]
        count += len(ranges.rows)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Rows(**columns, labels=list(labels), lanes=lanes)


def _columns(batch: Batch, nested: Nesting, ranges: Ranges, label: Numbers) -> dict[str, Any]:
    rows = ranges.rows
    overlaps = (batch.flags[rows] & OVERLAPPING) != 0
    kind = np.zeros(len(rows), np.int64)
    kind[batch.scope[rows] == RecordScope.BACKWARD_FUNCTION] = 1
    for source, number in _OF_SOURCE.items():
        kind[batch.source[rows] == source] = number
    of_backward = [name.startswith(OF_BACKWARD) for name in batch.names]
    kind[(kind == 0) & np.array(of_backward)[batch.name[rows]]] = 1
    kind[(kind == 0) & (batch.scope[rows] == RecordScope.USER_SCOPE)] = 3
    kind[batch.device[rows] != 0] = GPU
    allocated = np.zeros(len(batch), np.int64)
    reports = (batch.kind[nested.child] == EventKind.MEMORY) & (batch.nbytes[nested.child] > 0)
    np.add.at(allocated, nested.parent[reports], batch.nbytes[nested.child[reports]])
    return {
        "label": label,
        "start_ns": batch.start_ns[rows],
        "total_ns": ranges.durations,
        "self_ns": ranges.self_ns,
        "cpu_ns": batch.cpu_time_ns[rows],
        "allocated": allocated[rows],
        "kind": kind,
        "step": batch.step_number[rows],
        "overlaps": overlaps,
    }


def labels_of(batch: Batch, rows: Numbers, labels: dict[str, int]) -> Numbers:
    """The labels of these rows, as numbers that ``labels`` gives and is given."""
    found = np.zeros(len(batch.names), np.int64)
    for index in distinct(batch.name[rows]).tolist():
        found[index] = labels.setdefault(label_of(batch.names[index]), len(labels))
    return found[batch.name[rows]]


def label_of(name: str) -> str:
    """What ranges of that name are called: numbered ones, as steps are, have one label."""
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered else name or "(no name)"
