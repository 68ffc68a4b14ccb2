"""Chrome trace events of a batch, to be read: the bytes that the encoder writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.python_ids import CallIds
from otel_recfn.model.batch import COLUMN_TYPES, Batch, Event, Track
from otel_recfn.model.events import (
    OVERLAPPING,
    SOURCES,
    UNNAMED_STEP,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
    is_call,
)
from otel_recfn.sinks.chrome.arrows import Arrows
from otel_recfn.sinks.chrome.encoder import microseconds, trace_tid
from otel_recfn.support.texts import json_value, utf8_json

MODULE_PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""
MAX_DIGITS = 9
"""Of a module's number."""


def model_events(
    batch: Batch,
    rows: NDArray[np.int64],
    *,
    pid: int,
    base_ns: int,
    memory: bytearray,
    ids: CallIds | None,
) -> int:
    """As ``encode_chrome_events``."""
    chosen = replace(
        batch, **{column: getattr(batch, column)[rows] for column in COLUMN_TYPES}, closed=-1
    )
    none = np.zeros(len(batch), np.uint64)
    own, caller = (none, none) if ids is None else (ids.own, ids.caller)
    events = zip(chosen.rows(), own[rows].tolist(), caller[rows].tolist(), strict=True)
    chunks = [chunk for row, *pair in events for chunk in _event(Event(**row), pair, pid, base_ns)]
    return _filled(memory, "".join([f",\n{{{chunk}}}" for chunk in chunks]))


def model_flows(arrows: Arrows, *, first_id: int, pid: int, base_ns: int, memory: bytearray) -> int:
    """As ``encode_chrome_flows``."""
    chunks = []
    columns = [column.tolist() for column in arrows]
    for number, (start_tid, start_ns, end_tid, end_ns) in enumerate(
        zip(*columns, strict=True), first_id
    ):
        for phase, tid, time_ns, binding in (
            ("s", start_tid, start_ns, ""),
            ("f", end_tid, end_ns, ',"bp":"e"'),
        ):
            where = f'"pid":{pid},"tid":{tid},"ts":{microseconds(time_ns - base_ns)}'
            chunks.append(
                f',\n{{"ph":"{phase}","id":{number},{where},'
                f'"cat":"fwdbwd","name":"fwdbwd"{binding}}}'
            )
    return _filled(memory, "".join(chunks))


def _filled(memory: bytearray, text: str) -> int:
    data = text.encode()
    memory[: len(data)] = data
    return len(data)


def _event(event: Event, python_ids: list[int], pid: int, base_ns: int) -> Iterator[str]:
    """A row's event, or the two that an asynchronous range has, each without its braces.

    ``python_ids`` are its own and its caller's.
    """
    start = _moment(event.thread, pid, event.start_ns - base_ns)
    name = f'"cat":"{_category(event)}","name":{json_value(_name(event))}'
    args = (
        '"args":{'
        + ",".join([f'"{key}":{value}' for key, value in _args(event, *python_ids)])
        + "}"
    )
    if event.kind != RowKind.RANGE:
        yield f'"ph":"i","s":"t",{start},{name},{args}'
    elif _is_async(event):
        end = _moment(event.end_thread, pid, max(event.start_ns, event.end_ns) - base_ns)
        yield f'"ph":"b",{_local_id(event)},{start},{name},{args}'
        yield f'"ph":"e",{_local_id(event)},{end},{name}'
    else:
        yield f'"ph":"X",{start},"dur":{microseconds(max(0, event.duration_ns))},{name},{args}'


def _local_id(event: Event) -> str:
    """Of this process: other ones, whose traces may be read together with this one, count from
    the same number.
    """
    return f'"id2":{{"local":"{event.event_id:#x}"}}'


def _moment(thread: Track, pid: int, time_ns: int) -> str:
    return f'"pid":{pid},"tid":{trace_tid(thread)},"ts":{microseconds(time_ns)}'


def _name(event: Event) -> str:
    """A step's as torch.profiler names its steps, by which its readers find them."""
    if event.step_number == -1:
        return event.name
    return f"{'ProfilerStep' if event.name == UNNAMED_STEP else event.name}#{event.step_number}"


def _category(event: Event) -> str:
    """As torch.profiler's, which its readers look for: a module's call is Python, an optimizer's
    step an annotation.
    """
    if event.kind != RowKind.RANGE:
        return "cpu_instant_event"
    if is_call(event.source, event.name):
        return "python_function"
    return "user_annotation" if event.scope == RecordScope.USER_SCOPE else "cpu_op"


def _is_async(event: Event) -> bool:
    return bool(event.flags & OVERLAPPING) or event.thread != event.end_thread


def _args(event: Event, own_id: int, caller_id: int) -> Iterator[tuple[str, object]]:
    yield "Scope", f'"{event.scope.name}"'
    if event.kind == RowKind.RANGE and not is_call(event.source, event.name):
        is_annotation = event.scope == RecordScope.USER_SCOPE
        assumed = EventSource.RECORD_FUNCTION if is_annotation else EventSource.TORCH
        if event.source != assumed:
            yield "Source", f'"{event.source.name}"'
    yield "Thread id", event.thread_id
    optional = (
        ("Input Dims", utf8_json(event.shapes), ""),
        ("Input type", utf8_json(event.dtypes), ""),
        ("Module", json_value(event.module), '""'),
        ("Error", json_value(event.error), '""'),
        ("Call stack", json_value(event.stack), '""'),
        ("Device", json_value(event.device), '""'),
        ("Call site", json_value(event.call_site), '""'),
        ("Concrete Inputs", utf8_json(event.concrete_inputs), ""),
        ("Attributes", utf8_json(event.attributes), ""),
        ("Event id", event.event_id, None),
        ("External id", event.handle, event.event_id if event.handle else 0),
        ("Parent id", event.parent if event.flags & EventFlag.PARENT_ELSEWHERE else None, None),
        ("Sequence number", event.sequence_nr, -1),
        ("Fwd thread id", event.forward_thread_id, 0),
        ("Debug handle", event.debug_handle, -1),
        ("Node id", event.node_id, -1),
        ("Flops", event.flops, 0),
        ("recfn.step.number", event.step_number, -1),
        ("CPU time (ns)", event.cpu_time_ns, -1),
        ("Bytes", event.nbytes if event.kind == RowKind.MEMORY else None, None),
        ("Python id", own_id, 0),
        ("Python parent id", caller_id if own_id else 0, 0),
        ("Python module id", _module_number(event) if own_id else None, None),
    )
    yield from [(key, value) for key, value, absent in optional if value != absent]
    if event.kind == RowKind.RANGE and _is_async(event):
        yield "Async", "true"
        yield "End thread id", event.end_thread.thread_id
        if not event.flags & EventFlag.ASYNC:
            yield "Encloses", "true"
    if event.flags & EventFlag.PARTIAL:
        yield "Partial", "true"


def _module_number(event: Event) -> int | None:
    """The number at the end of the name of a module's call."""
    name, _, number = event.name.rpartition("_")
    is_module = (
        name.startswith(MODULE_PREFIX)
        and number.isdecimal()
        and number.isascii()
        and len(number) <= MAX_DIGITS
    )
    is_module = is_module and event.kind == RowKind.RANGE and is_call(event.source, event.name)
    return int(number) if is_module else None
