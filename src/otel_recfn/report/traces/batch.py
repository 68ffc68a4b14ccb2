"""The batch that the events of a trace make, with only the columns that a report shows.

    rows in the order of the file
      ──► ends of ranges that are written as two events
      ──► ordered: by thread, then by begin, the longest first ──► Slices
      ──► nested by their times; then as events say; then backward nodes as arrows say
      ──► in the order in which they ended ──► Batch
                                           ├─► the program's spans
                                           └─► samples of what ran in Python

A child ends before its parent, so that it stands before it, as in a batch of a drain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import nearest
from otel_recfn.batches.span_names import with_span_names
from otel_recfn.model.batch import Batch, Sample
from otel_recfn.model.columns import COLUMNS, NO_CONTEXT, Track
from otel_recfn.model.events import (
    NODES_PREFIX,
    ORDINAL_BITS,
    EventFlag,
    EventSource,
    RowKind,
)
from otel_recfn.report.activities import Activity
from otel_recfn.report.nesting import Nested, Slices, nested_by_time, without_spans
from otel_recfn.report.process import Spans
from otel_recfn.report.traces.events import TraceEvents

DEVICE = "GPU"
"""The text in the column ``device`` of what ran on a device."""
_BEGINS_BLOCK = re.compile(r".*\): __enter__|torch/profiler/profiler\.py\(\d+\): \w+", re.DOTALL)
"""The names of calls that begin a range which outlasts them: of ``with``, and of a profiler's
step.
"""


class Recorded(NamedTuple):
    """What a trace has."""

    batch: Batch
    """The ranges, marks and memory reports, a child before its parent; and training steps that
    nothing marks.
    """
    activity: NDArray[np.int64]
    """The Activity of each row."""
    spans: Spans
    samples: list[Sample]


class _Ordered(NamedTuple):
    """The rows of a trace in the order of ``Slices``, as columns."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int64]
    event_type: NDArray[np.int64]
    event_id: NDArray[np.int64]
    """The event id of each of our rows."""
    is_unfinished: NDArray[np.bool_]
    """Whether it was open when the trace ended."""
    position: NDArray[np.int64]
    """The position here of each row of the file."""


def recorded(events: TraceEvents, base_ns: int, *, torch_names: bool = False) -> Recorded:
    """All that was recorded.

    Args:
        events: the events, all of them.
        base_ns: the Unix time that times of the trace count from.
        torch_names: module calls have torch.profiler's names, and not those of spans.
    """
    ordered = _in_order(events)
    columns = events.types.columns(ordered.event_type)
    activity = events.threads.activities(ordered.thread, columns["lane"], columns["activity"])
    device = events.texts.setdefault(DEVICE, len(events.texts))
    columns["device"] = np.where(activity >= Activity.KERNEL, device, 0)
    is_span = np.isin(ordered.event_type, list(events.types.spans))
    nested = _nested(events, ordered, columns, is_span)

    parent = without_spans(nested, is_span)
    event_id = (ordered.thread + 1 << ORDINAL_BITS) + 1 + np.arange(len(ordered.start))
    columns["flags"] |= np.where(nested.crosses, int(EventFlag.CROSSING), 0)
    columns["flags"] |= np.where(ordered.is_unfinished, int(EventFlag.PARTIAL), 0)
    columns["event_id"] = event_id
    columns["parent"] = np.where(parent >= 0, event_id[parent], 0)
    columns["start_ns"] = ordered.start + base_ns
    columns["end_ns"] = nested.end + base_ns
    columns["thread"] = ordered.thread
    columns |= events.optional.columns(ordered.position)
    is_call = np.isin(ordered.event_type, list(events.types.module_calls))
    columns["enclosing_module"] = _enclosing_modules(columns, parent, is_call)

    rows = np.flatnonzero(~is_span)
    closing = rows[np.lexsort((-event_id[rows], nested.end[rows]))]
    spans = _spans(events, columns, closing, np.flatnonzero(is_span), nested.parent)
    batch = with_span_names(
        _batch(events, columns, closing, base_ns),
        np.flatnonzero(is_call[closing]),
        torch_names=torch_names,
    )
    samples = _samples(events, batch.tracks, ordered.event_id, event_id, base_ns)
    return Recorded(batch, activity[closing], spans, samples)


def _enclosing_modules(
    columns: Mapping[str, NDArray[Any]], parent: NDArray[np.int64], is_call: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The path of the module whose call is around that of a module, for each row; 0 if it isn't
    known.
    """
    modules = columns.get("module", np.zeros(len(parent), np.int64))
    found = np.zeros(len(parent), np.int64)
    if not modules.any():
        return found
    calls = np.flatnonzero(is_call & (parent >= 0))
    enclosing = nearest(parent, is_call)[parent[calls]]
    found[calls] = np.where(enclosing >= 0, modules[enclosing], 0)
    return found


def _samples(
    events: TraceEvents,
    tracks: Sequence[Track],
    written: NDArray[np.int64],
    event_id: NDArray[np.int64],
    base_ns: int,
) -> list[Sample]:
    """The samples of each run, at equal distances and of equal times.

    Args:
        events: the events of the trace.
        tracks: its threads.
        written: the event id of each range as the file has it.
        event_id: the new one.
        base_ns: the Unix time that times of the trace count from.
    """
    is_around = np.isin(written, [run.parent for run in events.samples])
    parents = dict(zip(written[is_around].tolist(), event_id[is_around].tolist(), strict=True))
    return [
        Sample(
            name=run.name,
            thread=tracks[run.thread],
            time_ns=base_ns + run.start + run.length * number // run.samples,
            duration_ns=_part(run.duration, number, run.samples),
            parent=parents.get(run.parent, 0),
            context=NO_CONTEXT,
            waits_for=run.waits_for,
            is_in_operator=run.is_in_operator,
            item=run.item,
        )
        for run in events.samples
        for number in range(1, run.samples + 1)
    ]


def _part(whole: int, number: int, count: int) -> int:
    """One of so many equal parts, whose sum is the whole; they are numbered from 1."""
    return whole * number // count - whole * (number - 1) // count


def _in_order(events: TraceEvents) -> _Ordered:
    start, end, thread, event_type, order = events.take_rows()
    ranges = events.two_event_ranges
    unfinished = ranges.match(int(end.max(initial=0)), events.unread)
    ended = list(ranges.end_ns)
    end[ended] = np.maximum(list(ranges.end_ns.values()), start[ended])
    is_unfinished = np.zeros(len(start), np.bool_)
    is_unfinished[unfinished] = True
    is_unfinished[events.open_rows] = True
    in_order = np.lexsort((order, -end, start, thread))
    return _Ordered(
        start=start[in_order],
        end=end[in_order],
        thread=thread[in_order],
        event_type=event_type[in_order],
        event_id=order[in_order],
        is_unfinished=is_unfinished[in_order],
        position=np.argsort(in_order),
    )


def _nested(
    events: TraceEvents,
    ordered: _Ordered,
    columns: Mapping[str, NDArray[Any]],
    is_span: NDArray[np.bool_],
) -> Nested:
    """The nesting of the slices, by time unless events say more."""
    can_enclose = (columns["kind"] == RowKind.RANGE) & (columns["flags"] == 0)
    begins_block = _begins_block(events, columns)
    slices = Slices(ordered.start, ordered.end, ordered.thread, can_enclose, begins_block)
    nested = nested_by_time(slices)
    is_explicit = events.parents.apply(slices, nested, ordered.position, ordered.event_id, is_span)
    is_node = np.array([text.startswith(NODES_PREFIX) for text in events.texts], np.bool_)
    may_move = is_node[columns["name"]] & ~is_explicit
    events.arrows.put_nodes_where_launched(slices, nested, events.threads, may_move)
    return nested


def _begins_block(events: TraceEvents, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Whether each row is a call of Python that may begin a range which outlasts it."""
    begins = [_BEGINS_BLOCK.fullmatch(text) is not None for text in events.texts]
    is_call = columns["source"] == EventSource.PYTHON_CALL
    return np.asarray(is_call & np.array(begins, np.bool_)[columns["name"]])


def _spans(
    events: TraceEvents,
    columns: Mapping[str, NDArray[Any]],
    closing: NDArray[np.int64],
    spans: NDArray[np.int64],
    parent: NDArray[np.int64],
) -> Spans:
    """The program's spans.

    Args:
        events: the events of the trace.
        columns: those of all slices.
        closing: the slices that are rows of the batch, in the order of its rows.
        spans: the slices that are spans.
        parent: the parent of each slice; -1 if it has none.
    """
    texts = list(events.texts)
    # Rows of the batch are numbered first, then spans; the last entry is for "no parent", -1.
    number = np.full(len(parent) + 1, -1, np.int64)
    number[closing] = np.arange(len(closing))
    number[spans] = len(closing) + np.arange(len(spans))
    return Spans(
        name=[texts[name] for name in columns["name"][spans].tolist()],
        start_ns=columns["start_ns"][spans],
        end_ns=columns["end_ns"][spans],
        thread=columns["thread"][spans],
        parent=number[parent[spans]],
        enclosing=np.maximum(number[parent[closing]] - len(closing), -1),
    )


def _batch(
    events: TraceEvents,
    columns: Mapping[str, NDArray[Any]],
    closing: NDArray[np.int64],
    base_ns: int,
) -> Batch:
    """The batch of the slices that are ranges, marks or memory reports, as they closed."""
    fields: dict[str, Any] = {}
    for column in COLUMNS:
        if column.name in columns:
            values = columns[column.name][closing].astype(column.dtype)
        else:
            # Not np.full: a million rows of them would take 200 MB.
            values = np.broadcast_to(column.dtype(column.empty), len(closing))
        fields[column.name] = values
    steps = [
        step._replace(start_ns=step.start_ns + base_ns, end_ns=step.end_ns + base_ns)
        for step in events.steps
    ]
    return Batch(**fields, names=list(events.texts), tracks=events.threads.tracks(), steps=steps)
