"""The events and fields of a Chrome trace that describe the run, its process and its threads."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from typing import Any

from otel_recfn.batches.wall import thread_name
from otel_recfn.model.batch import Track
from otel_recfn.sinks.chrome.encoder import trace_tid
from otel_recfn.support.processes import RANK, WORLD_SIZE, number_in_environment, run_id
from otel_recfn.support.texts import json_value


def header(base_ns: int) -> bytes:
    """The beginning of the object, up to its events."""
    distributed = {
        "backend": "",
        "rank": number_in_environment(RANK) or 0,
        "world_size": number_in_environment(WORLD_SIZE) or 1,
    }
    fields = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": distributed,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "host_name": platform.node(),
    }
    return f'{json_value(fields)[:-1]}, "traceEvents": [\n'.encode()


def process_events(pid: int, base_ns: int) -> bytes:
    """The process's name, run and rank; and the time that others count from.

    An array that a kill has cut says these nowhere else.
    """
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    rank = number_in_environment(RANK) or 0
    process = {"name": program, "baseTimeNanoseconds": base_ns, "run": run_id()}
    events = (
        _metadata_event("process_name", pid, 0, process),
        _metadata_event("process_labels", pid, 0, {"labels": f"rank {rank}"}),
        _metadata_event("process_sort_index", pid, 0, {"sort_index": rank}),
    )
    return ",\n".join(events).encode()


def thread_events(threads: Iterable[Track], known: dict[int, str], pid: int) -> bytes:
    """The names of threads that are new, or have another name than before.

    ``known`` has the names before, by thread, and gets the new ones.
    """
    events = []
    for thread in threads:
        tid = trace_tid(thread)
        name = thread_name(thread)
        if known.get(tid) != name:
            known[tid] = name
            order = {"sort_index": thread.number}
            events.append(_metadata_event("thread_name", pid, tid, {"name": name}))
            events.append(_metadata_event("thread_sort_index", pid, tid, order))
    return "".join([f",\n{event}" for event in events]).encode()


def _metadata_event(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json_value({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})
