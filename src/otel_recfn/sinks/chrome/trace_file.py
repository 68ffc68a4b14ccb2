"""Chrome trace files: what chrome://tracing, Perfetto and HolisticTraceAnalysis read, written while the program runs.

While it is written the file is an array of events: Perfetto and chrome://tracing open that also where a kill has cut it. Its
clean end makes it an object with ``schemaVersion``, ``distributedInfo`` and ``traceEvents``, as torch.profiler's are, which all
readers take. That is done in place: behind the events come the object's last fields, then the beginning, as long in both forms,
is replaced; Perfetto opens what a kill leaves between the two. (A copy beside the file, renamed over it, takes 0.7 s a GiB and
as much room again on a disk that may be full; this takes 0.1 ms.)

    beginning, events │ open ranges, end of the JSON
                      └─ the tail: new events take its place ─

Ranges that are open for long are in the tail, as slices up to the end of the file, and once in the file when they end.

Times are microseconds with three decimals since ``baseTimeNanoseconds``, the start of a week: readers take a number for a
double, which Perfetto turns back into the right nanosecond up to 2^42 microseconds, seven weeks. (Since the start of
torch.profiler's window of three months, a quarter of the slices came out a nanosecond late, over the end of the slice around
them; since the Unix epoch, a double only holds quarters of a microsecond.) Files of the same week share their time axis.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.forward_links import Links, NodeNumbers, find_links, with_node_numbers
from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING
from otel_recfn.sinks.chrome.automatic_steps import AutomaticSteps
from otel_recfn.sinks.chrome.encoder import encode_memory, encode_spans, encode_steps, trace_tid
from otel_recfn.sinks.chrome.span_slices import SpanSlice, SpanSlices
from otel_recfn.sinks.growing_file import GrowingFile
from otel_recfn.sinks.gzip_stream import Data, GzipStream, PlainStream
from otel_recfn.support.processes import RANK, WORLD_SIZE, number_of
from otel_recfn.support.seen_spans import seen_spans
from otel_recfn.support.texts import json_value

ROWS_AT_ONCE = 4096
"""The rows that are encoded at once: a megabyte, which stays in the cache."""
MOST_ROWS_AT_ONCE = 32_768
"""The rows that are encoded at once of a large batch: each time the GIL is taken, for which busy threads make it wait 5 ms."""
MOST_OPEN = 1000
"""The most open ranges in the file, which are written again with each batch."""
ARRAY, ARRAYS_END = b"[\n", b"\n]\n"
WEEK_NS = 7 * 86_400 * 1_000_000_000


class ChromeTraceFile:
    """A trace that begins empty, whatever the file had, and takes batches. Every method but ``close`` may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._base_ns = time.time_ns() // WEEK_NS * WEEK_NS
        self._stream = GzipStream() if path.suffix == ".gz" else PlainStream()
        self._links = _native.ForwardRanges()
        self._thread_names: dict[int, str] = {}
        self._memory = bytearray()
        self._slices, self._steps = SpanSlices(seen_spans.find), AutomaticSteps()
        self._nodes: NodeNumbers = {}
        self._memory_totals: dict[str, int] = {}
        """The bytes of memory by device."""
        self._flows = 0
        self._open: Batch | None = None
        """The ranges that are open for long."""
        events = _process_events(self._pid, self._base_ns)
        self._beginning = _header(self._base_ns) + events
        self._file = GrowingFile(path)
        try:
            self._file.append(self._stream.alone((ARRAY + events).ljust(len(self._beginning)), 0))
            self.show()
        except BaseException:
            self._file.close()
            raise

    def append(self, batch: Batch) -> None:
        """Add the batch's events. After an error, call ``take_back``."""
        self._open = (
            _still_open(self._open, batch)
            if batch.long_open is None
            else _outermost(batch.long_open)
        )
        self._slices, over = self._slices.after(batch)
        numbered, ended = with_node_numbers(batch, self._nodes), self._steps.add(batch)
        counted = encode_memory(batch, self._memory_totals, self._pid, self._base_ns)
        self._put(self._thread_events(batch, self._thread_names))
        rows = _in_order_of_begins(batch)
        at_once = min(max(ROWS_AT_ONCE, len(rows) // 16), MOST_ROWS_AT_ONCE)
        for first in range(0, len(rows), at_once):
            chosen = rows[first : first + at_once]
            self._put_encoded(
                _native.encode_chrome_events(
                    numbered, chosen, self._pid, self._base_ns, self._memory
                )
            )
        tids = np.array([trace_tid(thread) for thread in batch.tracks], np.uint64)
        arrows = _arrows(batch, tids, find_links(self._links, batch, tids))
        self._put_encoded(
            _native.encode_chrome_flows(
                *arrows, self._flows + 1, self._pid, self._base_ns, self._memory
            )
        )
        self._flows += len(arrows[0])
        self._put(
            encode_spans(over, self._pid, self._base_ns)
            + encode_steps(ended, self._pid, self._base_ns)
            + counted
        )

    def show(self) -> None:
        """Show all that was appended in the file."""
        self._show(ARRAYS_END)

    def finish(self, lost: int = 0) -> None:
        """Show all, and make the file an object. ``lost`` is how many rows it lacks."""
        fields = f', "lost": {lost}' if lost else ""
        self._show(f"\n]{fields}}}\n".encode(), self._stream.alone(self._beginning, 0))

    def _show(self, end: bytes, beginning: bytes = b"") -> None:
        self._file.append(self._stream.flush(self._file.length))
        self._file.show(self._stream.alone(self._open_events() + end, self._file.length), beginning)

    def take_back(self) -> None:
        """Take what was appended since ``show`` out of the file. No arrow will lead to a range from before."""
        self._file.take_back()
        self._stream.forget()
        self._links = _native.ForwardRanges()
        self._thread_names.clear()

    def close(self) -> None:
        """Close the file with what was shown, and nothing else."""
        self._file.close()

    def close_in_child(self) -> None:
        """Close what a forked child has inherited; the file itself belongs to the parent."""
        self._file.close_in_child()

    def _put(self, data: Data) -> None:
        self._file.append(self._stream.put(data, self._file.length))

    def _put_encoded(self, size: int) -> None:
        with memoryview(self._memory) as memory, memory[:size] as encoded:
            self._put(encoded)

    def _open_events(self) -> bytes:
        """The events of what is open so far: steps, the program's spans, and ranges that are open for long."""
        slices, over = self._slices, list[SpanSlice]()
        events = encode_steps(self._steps.open(), self._pid, self._base_ns)
        if self._open is not None and len(self._open):
            slices, over = slices.after(self._open)
            rows = _in_order_of_begins(self._open)
            size = _native.encode_chrome_events(
                self._open, rows, self._pid, self._base_ns, self._memory
            )
            events += (
                self._thread_events(self._open, dict(self._thread_names)) + self._memory[:size]
            )
        return events + encode_spans([*over, *slices.open()], self._pid, self._base_ns)

    def _thread_events(self, batch: Batch, known: dict[int, str]) -> bytes:
        """The names of threads that are new in the batch, or have another name than before."""
        events = []
        used = np.zeros(len(batch.tracks), dtype=np.bool_)
        np.put(used, batch.thread, True)
        np.put(used, batch.end_thread, True)
        for index in np.flatnonzero(used).tolist():
            tid = trace_tid(thread := batch.tracks[index])
            name = thread.name or f"thread {tid}"
            if known.get(tid) != name:
                known[tid] = name
                events.append(_metadata_event("thread_name", self._pid, tid, {"name": name}))
                events.append(
                    _metadata_event(
                        "thread_sort_index", self._pid, tid, {"sort_index": thread.number}
                    )
                )
        return "".join([f",\n{event}" for event in events]).encode()


def _header(base_ns: int) -> bytes:
    """The beginning of the object, up to its events."""
    distributed = {
        "backend": "",
        "rank": number_of(RANK) or 0,
        "world_size": number_of(WORLD_SIZE) or 1,
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


def _process_events(pid: int, base_ns: int) -> bytes:
    """The process's name and its rank; and what times count from, which an array that a kill has cut says nowhere else."""
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    rank = number_of(RANK) or 0
    events = (
        _metadata_event("process_name", pid, 0, {"name": program, "baseTimeNanoseconds": base_ns}),
        _metadata_event("process_labels", pid, 0, {"labels": f"rank {rank}"}),
        _metadata_event("process_sort_index", pid, 0, {"sort_index": rank}),
    )
    return ",\n".join(events).encode()


def _metadata_event(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json_value({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _in_order_of_begins(batch: Batch) -> NDArray[np.int64]:
    """The rows by event id: within a thread that is the order of begins, a parent before its children."""
    return np.argsort(batch.event_id, kind="stable").astype(np.int64, copy=False)


def _still_open(ranges: Batch | None, batch: Batch) -> Batch | None:
    """The open ranges that did not end with the batch. What lies in them must not end later than they do so far."""
    if ranges is None or not len(ranges) or not len(batch):
        return ranges
    rows = ~is_in(ranges.event_id, batch.event_id)
    return ranges.take(rows, end_ns=np.maximum(ranges.end_ns[rows], batch.end_ns.max()))


def _outermost(ranges: Batch) -> Batch:
    """The open ranges that began first, as many as the file shows."""
    return ranges.take(np.lexsort((ranges.event_id, ranges.start_ns))[:MOST_OPEN])


Arrows = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]


def _arrows(batch: Batch, tids: NDArray[np.uint64], links: Links) -> Arrows:
    """The thread and start of the forward and of the backward slice of each arrow."""
    rows = links.row
    is_slice = ((batch.flags[rows] & OVERLAPPING) == 0) & (
        batch.thread[rows] == batch.end_thread[rows]
    )
    rows = rows[is_slice]
    return (
        links.number[is_slice],
        links.start_ns[is_slice],
        np.take(tids, batch.thread[rows]),
        batch.start_ns[rows],
    )
