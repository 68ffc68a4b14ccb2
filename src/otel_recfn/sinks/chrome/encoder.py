"""Chrome trace events from sealed batches, as bytes.

The bytes are JSON in UTF-8, each event preceded by a comma and a newline. A range is a complete
event (``"X"``); one that may end on another thread, or out of turn, is a pair of nestable async
events (``"b"`` and ``"e"``), so that the slices of a thread never overlap; a mark and a change of
memory are instants (``"i"``). Times are microseconds since ``base_ns`` with exactly three decimals.

Args say only what was recorded, each thing once. ``External id`` is RecordFunction's own id: what
torch.profiler, its trace of execution (``rf_id``) and HolisticTraceAnalysis know an operator by;
``Event id`` is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from otel_recfn.batches.number_sets import distinct, equals
from otel_recfn.batches.sampled_functions import (
    IN_OPERATOR,
    LOADED_ITEM,
    SAMPLE_COUNT,
    SAMPLED,
    SAMPLED_FUNCTION,
    SAMPLED_TIME,
    WAITED_FOR,
    SampledRun,
)
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import PROFILER_STEP, STEP_NUMBER, RowKind
from otel_recfn.sinks.chrome.heard_spans import SpanSlice
from otel_recfn.support.texts import json_value


def trace_tid(track: Track) -> int:
    """The ``tid`` of a thread in a trace: the operating system's id, or the recorder's number if
    there is none.
    """
    return track.native_id or track.number


def encode_spans(slices: Sequence[SpanSlice], pid: int, base_ns: int) -> bytes:
    """The bytes of slices of the program's spans. There are few, so no native encoder is needed."""
    chunks = []
    for each in slices:
        trace_id, span_id = each.key
        args = {"trace_id": f"{trace_id:032x}", "span_id": f"{span_id:016x}"}
        if each.parent_id:
            args["parent_span_id"] = f"{each.parent_id:016x}"
        async_id = "" if each.nests else f"{span_id:016x} {each.start_ns}"
        chunks.append(_annotation(each, args, pid, base_ns, async_id))
    return "".join(chunks).encode()


class NamedSlice(NamedTuple):
    """A slice with a name of its own."""

    name: str
    track: Track
    start_ns: int
    end_ns: int


def encode_steps(batch: Batch, pid: int, base_ns: int) -> bytes:
    """The bytes of slices of the training steps that are over with a batch, unless they have
    one. They have the names that torch.profiler gives its steps.
    """
    chunks = []
    for step in batch.steps:
        if step.is_marked:
            continue
        each = NamedSlice(
            f"{PROFILER_STEP}{step.number}", batch.tracks[step.thread], step.start_ns, step.end_ns
        )
        chunks.append(_annotation(each, {STEP_NUMBER: step.number}, pid, base_ns))
    return "".join(chunks).encode()


def encode_runs(runs: Sequence[SampledRun], pid: int, base_ns: int) -> bytes:
    """The bytes of slices of runs of samples, in each of which the thread waited for one thing."""
    chunks = []
    for run in runs:
        each = NamedSlice(_run_name(run), run.thread, run.start_ns, run.end_ns)
        args: dict[str, Any] = {
            SAMPLED_FUNCTION: run.name,
            SAMPLE_COUNT: run.samples,
            SAMPLED_TIME: run.duration_ns,
            "Parent id": run.parent,
            **({LOADED_ITEM: run.item} if run.item else {}),
        }
        if run.waits_for:
            args[WAITED_FOR] = run.waits_for
        if run.is_in_operator:
            args[IN_OPERATOR] = True
        chunks.append(_annotation(each, args, pid, base_ns, category=SAMPLED))
    return "".join(chunks).encode()


def _run_name(run: SampledRun) -> str:
    """The name of a run's slice. In an operator, whose time it is, it says what that waits for."""
    if not run.is_in_operator:
        return f"{run.name} (sampled)"
    preposition = "in" if run.waits_for == run.name else "for"
    return f"waits {preposition} {run.waits_for} (sampled)"


def _annotation(
    each: SpanSlice | NamedSlice,
    args: dict[str, Any],
    pid: int,
    base_ns: int,
    async_id: str = "",
    *,
    category: str = "user_annotation",
) -> str:
    """A slice; with an id, an asynchronous event."""
    start = microseconds(each.start_ns - base_ns)
    duration = microseconds(each.end_ns - each.start_ns)
    common = (
        f'"pid":{pid},"tid":{trace_tid(each.track)},'
        f'"cat":"{category}","name":{json_value(each.name)}'
    )
    if not async_id:
        return f',\n{{"ph":"X",{common},"ts":{start},"dur":{duration},"args":{json_value(args)}}}'
    common += f',"id2":{{"local":{json_value(async_id)}}}'
    begin = f',\n{{"ph":"b",{common},"ts":{start},"args":{json_value(args)}}}'
    return f'{begin},\n{{"ph":"e",{common},"ts":{microseconds(each.end_ns - base_ns)}}}'


def microseconds(nanoseconds: int) -> str:
    """A time as a number with exactly three decimals."""
    whole, remainder = divmod(abs(nanoseconds), 1000)
    return f"{'-' if nanoseconds < 0 else ''}{whole}.{remainder:03}"


def encode_memory(batch: Batch, totals: dict[str, int], pid: int, base_ns: int) -> bytes:
    """The bytes of counter tracks of memory, one a device: what was allocated and not freed since
    the trace began.

    ``totals`` are bytes by device, which the batch is added to.
    """
    rows = np.flatnonzero(equals(batch.kind, RowKind.MEMORY))
    if not len(rows):
        return b""
    events = []
    rows = rows[np.argsort(batch.start_ns[rows], kind="stable")]
    for index in distinct(batch.device[rows]).tolist():
        own = rows[batch.device[rows] == index]
        device = batch.names[index]
        sums = totals.get(device, 0) + np.cumsum(batch.nbytes[own])
        totals[device] = int(sums[-1])
        head = f'"ph":"C","pid":{pid},"name":{json_value(f"memory {device}")}'
        for time_ns, value in zip(batch.start_ns[own].tolist(), sums.tolist(), strict=True):
            events.append(
                f',\n{{{head},"ts":{microseconds(time_ns - base_ns)},"args":{{"bytes":{value}}}}}'
            )
    return "".join(events).encode()
