"""The columns of a recording: the ranges of its processes, one process after the other.

Each process numbers its rows, threads and spans from 0. In the recording its numbers come after
those of the processes before it:

    process 0    rows ──► ranges 0 ...    tracks ──► lanes 0 ...    spans ──► spans 0 ...
    process 1    rows ──► ranges n ...    tracks ──► lanes k ...    spans ──► spans s ...

A parent is the number of a range or, from the number of all ranges on, that of a span. Labels are
numbered for all processes together, those of ranges first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.build_tree import nested_ranges
from otel_recfn.batches.measures import Nesting, find_nesting
from otel_recfn.batches.number_sets import Indices, distinct
from otel_recfn.batches.wall import is_step, thread_name
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING, PROFILER_STEP, EventFlag, RowKind
from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.kinds import range_kinds
from otel_recfn.report.labels import label_of, shorten
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.process import Process, Spans

LARGE_BLOCK = 1 << 20
"""The minimum size of a block that memory allocators return to the system: each new one of that
size is paged in anew.
"""


MAX_DIGITS = 18
"""The maximum number of digits of a step's number, which fits 64 bits."""


class RangeColumns(NamedTuple):
    """The ranges of all processes, as columns."""

    process: Numbers
    row: Numbers
    """The row in the batch of the process."""
    lane: Numbers
    label: Numbers
    """Index into the labels; ranges that differ by their number alone, as steps do, have one."""
    parent: Numbers
    """The range around it; -1 at the top."""
    start_ns: Numbers
    total_ns: Numbers
    self_ns: Numbers
    """The time without the ranges in it; of what stands in a device's lane, its work."""
    cpu_ns: Numbers
    """The time that its thread worked; -1 if that isn't known."""
    allocated: Numbers
    """The bytes that PyTorch allocated in it, without the ranges in it."""
    large: Numbers
    """The part of them in large blocks."""
    kind: Numbers
    """Index into KINDS."""
    activity: Numbers
    """The Activity; ranges of a device have one from ``Activity.KERNEL`` on, and the kind GPU."""
    step: Numbers
    """The number of a step; -1 of other ranges."""
    is_step: Mask
    """Whether it is a step, with a number or without."""
    is_open: Mask
    """Whether it was open when recording ended."""
    overlaps: Mask
    """Whether it may overlap its neighbours in its thread."""
    enclosing_span: Numbers
    """The span directly around it; -1 if a range is, or nothing."""


class DisplayedSpans(NamedTuple):
    """The program's spans of all processes, as columns."""

    lane: Numbers
    start_ns: Numbers
    end_ns: Numbers
    label: Numbers
    """Index into the labels; no range has one of these."""
    parent: Numbers
    """The range around it or, beyond these, the span; -1 at the top."""


class Joined(NamedTuple):
    """The processes of a recording, joined."""

    lanes: list[tuple[int, str]]
    """The process and the name of each thread."""
    labels: list[str]
    ranges: RangeColumns
    spans: DisplayedSpans


class _Offsets(NamedTuple):
    """How many processes, ranges, lanes and spans come before those of a process."""

    process: int = 0
    ranges: int = 0
    lanes: int = 0
    spans: int = 0


_NO_SPANS = DisplayedSpans(*[np.zeros(0, np.int64)] * 5)


def join_columns(processes: Sequence[Process]) -> Joined:
    """The columns of these processes, joined."""
    labels: dict[str, int] = {}
    parts: list[RangeColumns] = []
    offsets = [_Offsets()]
    for process in processes:
        parts.append(_range_columns(process, offsets[-1], labels))
        offsets.append(_next_offsets(process, len(parts[-1].row), offsets[-1]))
    ranges = RangeColumns(*_concatenated(parts))
    spans, span_labels = _joined_spans(processes, ranges, offsets, len(labels))
    lanes = [
        (number, shorten(thread_name(track)))
        for number, process in enumerate(processes)
        for track in process.batch.tracks
    ]
    return Joined(lanes, [*labels, *span_labels], ranges, spans)


def _next_offsets(process: Process, ranges: int, before: _Offsets) -> _Offsets:
    spans = len(process.spans.name) if process.spans is not None else 0
    return _Offsets(
        before.process + 1,
        before.ranges + ranges,
        before.lanes + len(process.batch.tracks),
        before.spans + spans,
    )


def _range_columns(process: Process, before: _Offsets, labels: dict[str, int]) -> RangeColumns:
    """The ranges of a process. New labels are added to ``labels``."""
    batch = process.batch
    nested = find_nesting(batch)
    ranges = nested_ranges(batch, nested)
    rows = ranges.rows
    count = len(rows)
    activity = np.zeros(count, np.int64) if process.activity is None else process.activity[rows]
    enclosing = np.full(count, -1) if process.spans is None else process.spans.enclosing[rows]
    # A stream's slices come one after another, and annotations around them are no work.
    work_ns = np.where(np.isin(activity, WORK), ranges.durations, 0)
    return RangeColumns(
        process=np.full(count, before.process),
        row=rows,
        lane=batch.thread[rows].astype(np.int64) + before.lanes,
        label=_row_labels(batch, rows, labels),
        parent=np.where(ranges.parent >= 0, ranges.parent + before.ranges, -1),
        start_ns=batch.start_ns[rows],
        total_ns=ranges.durations,
        self_ns=np.where(activity >= Activity.KERNEL, work_ns, ranges.self_ns),
        cpu_ns=batch.cpu_time_ns[rows],
        allocated=_allocated_bytes(batch, nested, 1)[rows],
        large=_allocated_bytes(batch, nested, LARGE_BLOCK)[rows],
        kind=range_kinds(batch, rows),
        activity=activity,
        step=_step_numbers(batch)[rows],
        is_step=is_step(batch)[rows],
        is_open=np.asarray(batch.flags[rows] & EventFlag.PARTIAL != 0),
        overlaps=np.asarray(batch.flags[rows] & OVERLAPPING != 0),
        enclosing_span=np.where(enclosing >= 0, enclosing + before.spans, -1),
    )


def _step_numbers(batch: Batch) -> Numbers:
    """The number of each row that is a step: its own or, of a profiler's, that in its name."""
    in_names = np.array([_step_number_in(name) for name in batch.names], np.int64)
    numbers = np.maximum(batch.step_number, in_names[batch.name])
    return np.where(is_step(batch), numbers, -1)


def _step_number_in(name: str) -> int:
    """The number in the name of a profiler's step; -1 in other names."""
    number = name.removeprefix(PROFILER_STEP)
    has_number = name.startswith(PROFILER_STEP) and number.isdecimal()
    return int(number[-MAX_DIGITS:]) if has_number else -1


def _row_labels(batch: Batch, rows: Indices, labels: dict[str, int]) -> Numbers:
    """The labels of these rows as numbers; ``labels`` has those of all processes, and gets the
    new ones.
    """
    found = np.zeros(len(batch.names), np.int64)
    for index in distinct(batch.name[rows]).tolist():
        found[index] = labels.setdefault(label_of(batch.names[index]), len(labels))
    return found[batch.name[rows]]


def _allocated_bytes(batch: Batch, nested: Nesting, min_bytes: int) -> Numbers:
    """The bytes that were allocated directly in each row, in blocks of at least this size."""
    allocated = np.zeros(len(batch), np.int64)
    nbytes = batch.nbytes[nested.child]
    reports = (batch.kind[nested.child] == RowKind.MEMORY) & (nbytes >= min_bytes)
    np.add.at(allocated, nested.parent[reports], nbytes[reports])
    return allocated


def _joined_spans(
    processes: Sequence[Process],
    ranges: RangeColumns,
    offsets: Sequence[_Offsets],
    first_label: int,
) -> tuple[DisplayedSpans, list[str]]:
    """The spans of all processes, whose numbers come after those of all ranges; and their labels,
    whose numbers come after those of the ranges' labels.
    """
    numbers: dict[str, int] = {}
    parts = [_NO_SPANS]
    for process, before in zip(processes, offsets, strict=False):
        spans = process.spans
        if spans is None:
            continue
        rows = ranges.row[ranges.process == before.process]
        # The last entry is for spans that have no parent, which is -1.
        row_range = np.full(len(process.batch) + 1, -1, np.int64)
        row_range[rows] = before.ranges + np.arange(len(rows))
        labels = [
            first_label + numbers.setdefault(label_of(name), len(numbers)) for name in spans.name
        ]
        parts.append(
            DisplayedSpans(
                lane=spans.thread + before.lanes,
                start_ns=spans.start_ns,
                end_ns=spans.end_ns,
                label=np.array(labels, np.int64),
                parent=_span_parents(spans, row_range, len(ranges.row) + before.spans),
            )
        )
    return DisplayedSpans(*_concatenated(parts)), list(numbers)


def _span_parents(spans: Spans, row_range: Numbers, first_span: int) -> Numbers:
    """The parents of a process' spans, numbered as the recording numbers ranges and spans."""
    row_count = len(row_range) - 1
    is_span = spans.parent >= row_count
    range_parent = row_range[np.where(is_span, -1, spans.parent)]
    return np.where(is_span, first_span + spans.parent - row_count, range_parent)


def _concatenated(parts: Iterable[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """The columns of all parts, each as one column."""
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]
