"""The events of a profile: its rows one by one, with what follows from all of them together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.forward_links import find_links
from otel_recfn.batches.input_values import concrete_values
from otel_recfn.batches.measures import (
    Nesting,
    Rows,
    allocated_bytes,
    direct_children,
    find_nesting,
    own_bytes,
    self_times,
)
from otel_recfn.batches.profiled_event import ProfiledEvent
from otel_recfn.batches.python_ids import PythonIds
from otel_recfn.model.batch import Batch


def profiled_events(rows: Batch) -> list[ProfiledEvent]:
    """The rows in start order; of two that start at once, the one that began first."""
    nested = find_nesting(rows)
    measures = _measures(rows, nested)
    values = zip(*[column.tolist() for column in measures.values()], strict=True)
    first_ns = int(rows.start_ns.min()) if len(rows) else 0
    events = []
    for columns, row_values in zip(rows.rows(), values, strict=True):
        columns["concrete_inputs"] = concrete_values(columns["concrete_inputs"])
        columns.update(zip(measures, row_values, strict=True))
        events.append(ProfiledEvent(**columns, first_ns=first_ns))
    children, parents = direct_children(rows, nested)
    for child, parent in zip(children.tolist(), parents.tolist(), strict=True):
        object.__setattr__(events[child], "cpu_parent", events[parent])
    events.sort(key=attrgetter("start_ns", "event_id"))
    for event in events:
        if event.cpu_parent is not None:
            event.cpu_parent.cpu_children.append(event)
    return events


def _measures(rows: Batch, nested: Nesting) -> dict[str, NDArray[Any]]:
    """The attributes of events that follow from all rows together, as columns."""
    flow, is_start = _flows(rows)
    memory = allocated_bytes(rows, nested)
    device_memory = allocated_bytes(rows, nested, on_device=True)
    own, caller = _python_ids(rows)
    return {
        "self_ns": self_times(rows, nested),
        "cpu_memory_usage": memory,
        "self_cpu_memory_usage": own_bytes(rows, nested, memory),
        "device_memory_usage": device_memory,
        "self_device_memory_usage": own_bytes(rows, nested, device_memory),
        "python_id": own,
        "python_parent_id": caller,
        "flow_id": flow,
        "flow_start": is_start,
    }


def _flows(rows: Batch) -> tuple[Rows, NDArray[np.bool_]]:
    """The number of the flow that each row begins or ends, 0 if it does neither; and whether it
    begins one.

    A flow leads from a forward range to its backward node.
    """
    flow = np.zeros(len(rows), np.int64)
    is_start = np.zeros(len(rows), np.bool_)
    links = find_links(
        _native.ForwardRanges(), rows, np.array([track.number for track in rows.tracks], np.uint64)
    )
    numbers = np.arange(1, len(links.row) + 1)
    flow[links.row] = numbers
    order = np.argsort(rows.event_id)
    forward = order[np.searchsorted(rows.event_id, links.event_id, sorter=order)]
    flow[forward] = numbers
    is_start[forward] = True
    return flow, is_start


def _python_ids(rows: Batch) -> tuple[Rows, Rows]:
    """The ids of traced calls and of the calls around them, by row; -1 if there is none."""
    ids = PythonIds()
    ids.add([rows])
    calls = ids.call_ids(rows)
    if calls is None:
        none = np.full(len(rows), -1)
        return none, none
    is_traced = calls.own != 0
    own, caller = [np.where(is_traced & (each != 0), each, 0).astype(np.int64) for each in calls]
    return own - (own == 0), caller - (caller == 0)


def event_finder(rows: Batch) -> Callable[[int], ProfiledEvent]:
    """A function that finds the event of a row by its event id.

    The events are made when it is first called.
    """

    @cache
    def by_id() -> dict[int, ProfiledEvent]:
        return {event.event_id: event for event in profiled_events(rows)}

    return lambda event_id: by_id()[event_id]
