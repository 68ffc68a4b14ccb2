"""What a Chrome trace says of itself, the process and its tracks, beside the events."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch
from otel_recfn.support.processes import RANK, WORLD_SIZE, number_of
from otel_recfn.support.texts import json_value

MOST_TRACE_IDS = 100
"""So many stand in the file."""


class TraceIds:
    """Of the spans that ranges ran in: the first ones, in their order; replaced, never changed."""

    def __init__(self, ids: Mapping[int, None] = MappingProxyType({})) -> None:
        self.ids = ids

    def after(self, batch: Batch) -> TraceIds:
        """With those of a batch: of its rows, since its contexts may be of other recordings too."""
        if len(self.ids) >= MOST_TRACE_IDS:
            return self
        trace_ids = [batch.contexts[index].trace_id for index in distinct(batch.context).tolist()]
        new = [trace_id for trace_id in trace_ids if trace_id and trace_id not in self.ids]
        if not new:
            return self
        return TraceIds(dict.fromkeys([*self.ids, *new][:MOST_TRACE_IDS]))


def footer(traces: TraceIds, lost: int) -> bytes:
    """The end of the object. ``lost``: how many rows the file lacks."""
    ids: Any = [f"{trace_id:032x}" for trace_id in traces.ids]
    fields: dict[str, Any] = {"trace_ids": ids, **({"lost": lost} if lost else {})}
    return f"\n], {json_value(fields)[1:]}\n".encode()


def header(base_ns: int) -> bytes:
    """The beginning of the object, up to its events.

    Args:
        base_ns: what the times of events are relative to, since the Unix epoch.
    """
    distributed = {"backend": "", "rank": number_of(RANK) or 0, "world_size": number_of(WORLD_SIZE) or 1}
    fields = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": distributed,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "host_name": platform.node(),
    }
    return f'{json_value(fields)[:-1]}, "traceEvents": [\n'.encode()


def process_events(pid: int) -> bytes:
    """The process's name and its rank."""
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    rank = number_of(RANK) or 0
    events = (
        metadata_event("process_name", pid, 0, {"name": program}),
        metadata_event("process_labels", pid, 0, {"labels": f"rank {rank}"}),
        metadata_event("process_sort_index", pid, 0, {"sort_index": rank}),
    )
    return ",\n".join(events).encode()


def track_events(name: str, pid: int, tid: int, sort_index: int) -> str:
    """A track's name and its place among the others, after a comma."""
    sort = metadata_event("thread_sort_index", pid, tid, {"sort_index": sort_index})
    return f",\n{metadata_event('thread_name', pid, tid, {'name': name})},\n{sort}"


def metadata_event(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    """What is said of a process or a track."""
    return json_value({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})
