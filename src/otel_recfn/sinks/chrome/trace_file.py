"""Chrome trace files: what chrome://tracing, Perfetto and HolisticTraceAnalysis read, written while
the program runs.

While it is written the file is an array of events: Perfetto and chrome://tracing open that also
where a kill has cut it. Its clean end makes it an object with ``schemaVersion``,
``distributedInfo`` and ``traceEvents``, as torch.profiler's are, which all readers take. That is
done in place: behind the events come the object's last fields, then the beginning, as long in both
forms, is replaced; Perfetto opens what a kill leaves between the two. (A copy beside the file,
renamed over it, takes 0.7 s a GiB and as much room again on a disk that may be full; this takes 0.1
ms.)

    beginning, events │ open ranges, end of the JSON
                      └─ the tail: new events take its place ─

Ranges that are open for long are in the tail, as slices up to the end of the file, and once in the
file when they end.

Times are microseconds with three decimals since ``baseTimeNanoseconds``, the start of a week:
readers take a number for a double, which Perfetto turns back into the right nanosecond up to 2^42
microseconds, seven weeks. (Since the start of torch.profiler's window of three months, a quarter of
the slices came out a nanosecond late, over the end of the slice around them; since the Unix epoch,
a double only holds quarters of a microsecond.) Files of the same week share their time axis.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.forward_links import find_links
from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.python_ids import CallIds, PythonIds
from otel_recfn.batches.wall import Block
from otel_recfn.model.batch import Batch, ProgramSpan, Track
from otel_recfn.sinks.chrome.arrows import arrows_of
from otel_recfn.sinks.chrome.encoder import (
    encode_memory,
    encode_runs,
    encode_spans,
    encode_steps,
    trace_tid,
)
from otel_recfn.sinks.chrome.heard_spans import SpanSlice
from otel_recfn.sinks.chrome.metadata import header, process_events, thread_events
from otel_recfn.sinks.chrome.sample_slices import SampleSlices
from otel_recfn.sinks.chrome.span_slices import SpanSlices
from otel_recfn.sinks.growing_file import GrowingFile
from otel_recfn.sinks.gzip_stream import Data, GzipStream, PlainStream
from otel_recfn.support.seen_spans import seen_spans
from otel_recfn.support.texts import json_value

ROWS_AT_ONCE = 4096
"""The rows that are encoded at once: a megabyte, which stays in the cache."""
MAX_ROWS_AT_ONCE = 32_768
"""The rows that are encoded at once of a large batch: each time the GIL is taken, for which busy
threads make it wait 5 ms.
"""
MAX_OPEN = 1000
"""The maximum number of open ranges in the file, which are written again with each batch."""
ARRAY = b"[\n"
ARRAYS_END = b"\n]\n"
WEEK_NS = 7 * 86_400 * 1_000_000_000


class ChromeTraceFile:
    """A trace that begins empty, whatever the file had, and takes batches.

    Every method but ``close`` may raise OSError.

    Args:
        path: the file's.
        python_ids: those of all calls that come; None: calls are numbered as they come.
        replace: whether an existing file may be taken; else it is a FileExistsError.
    """

    def __init__(
        self, path: Path, python_ids: PythonIds | None = None, *, replace: bool = True
    ) -> None:
        self._pid = os.getpid()
        self._base_ns = time.time_ns() // WEEK_NS * WEEK_NS
        self._stream = GzipStream() if path.suffix == ".gz" else PlainStream()
        self._links = _native.ForwardRanges()
        self._thread_names: dict[int, str] = {}
        self._memory = bytearray()
        self._slices = SpanSlices(seen_spans.find)
        self._samples = SampleSlices()
        self._python_ids = python_ids or PythonIds()
        self._knows_all_calls = python_ids is not None
        self._memory_totals: dict[str, int] = {}
        """The bytes of memory by device."""
        self._flows = 0
        self._open: Batch | None = None
        """The ranges that are open for long."""
        events = process_events(self._pid, self._base_ns)
        self._beginning = header(self._base_ns) + events
        self._file = GrowingFile(path, replace=replace)
        try:
            self._file.append(
                self._stream.encode_apart((ARRAY + events).ljust(len(self._beginning)), 0)
            )
            self.show()
        except BaseException:
            self._file.close()
            raise

    def append(self, batch: Batch) -> None:
        """Add the batch's events. After an error, call ``take_back``."""
        if batch.long_open is None:
            self._open = _still_open(self._open, batch)
        else:
            self._open = _outermost(batch.long_open)
        self._slices, over = self._slices.with_batch(batch)
        ids = self._python_ids
        calls = ids.call_ids(batch) if self._knows_all_calls else ids.follow(batch)
        counted = encode_memory(batch, self._memory_totals, self._pid, self._base_ns)
        self._put(thread_events(_used_threads(batch), self._thread_names, self._pid))
        self._put(self._span_thread_events(batch.spans))
        self._append_rows(batch, calls)
        self._append_arrows(batch)
        spans = encode_spans(over, self._pid, self._base_ns)
        steps = encode_steps(batch, self._pid, self._base_ns)
        runs = encode_runs(self._samples.add(batch), self._pid, self._base_ns)
        self._put(spans + steps + runs + counted)

    def _append_rows(self, batch: Batch, calls: CallIds | None) -> None:
        rows = _ordered_by_begin(batch)
        at_once = min(max(ROWS_AT_ONCE, len(rows) // 16), MAX_ROWS_AT_ONCE)
        for first in range(0, len(rows), at_once):
            part = rows[first : first + at_once]
            self._put_encoded(self._encode(batch, part, calls))

    def _append_arrows(self, batch: Batch) -> None:
        tids = np.array([trace_tid(thread) for thread in batch.tracks], np.uint64)
        arrows = arrows_of(batch, tids, find_links(self._links, batch, tids))
        size = _native.encode_chrome_flows(
            arrows,
            first_id=self._flows + 1,
            pid=self._pid,
            base_ns=self._base_ns,
            memory=self._memory,
        )
        self._put_encoded(size)
        self._flows += len(arrows.from_tid)

    def show(self) -> None:
        """Show all that was appended in the file."""
        self._show(ARRAYS_END)

    def finish(self, lost: int = 0, block: Block | None = None) -> None:
        """Show all, and make the file an object.

        Args:
            lost: how many rows it lacks.
            block: the block that was recorded, whose length is the wall time of reports.
        """
        fields = f', "lost": {lost}' if lost else ""
        fields += f', "block": {json_value(block._asdict())}' if block is not None else ""
        self._show(f"\n]{fields}}}\n".encode(), self._stream.encode_apart(self._beginning, 0))

    def _show(self, end: bytes, beginning: bytes = b"") -> None:
        self._file.append(self._stream.flush(self._file.length))
        self._file.show(
            self._stream.encode_apart(self._open_events() + end, self._file.length), beginning
        )

    def take_back(self) -> None:
        """Take what was appended since ``show`` out of the file.

        No arrow will lead to a range from before.
        """
        self._file.take_back()
        self._stream.forget()
        self._links = _native.ForwardRanges()
        self._thread_names.clear()

    def close(self) -> None:
        """Close the file with what was shown, and nothing else."""
        self._file.close()

    def is_intact(self) -> bool:
        """Whether the file is still there as it was shown last."""
        return self._file.is_intact()

    def leave(self) -> None:
        """Close what this process has of the file, and leave that as it is."""
        self._file.leave()

    def _put(self, data: Data) -> None:
        self._file.append(self._stream.put(data, self._file.length))

    def _encode(self, batch: Batch, rows: NDArray[np.int64], calls: CallIds | None) -> int:
        """Encode rows to the memory; the number of bytes."""
        return _native.encode_chrome_events(
            batch, rows, pid=self._pid, base_ns=self._base_ns, memory=self._memory, ids=calls
        )

    def _put_encoded(self, size: int) -> None:
        with memoryview(self._memory) as memory, memory[:size] as encoded:
            self._put(encoded)

    def _open_events(self) -> bytes:
        """The events of what is open so far: the program's spans, ranges that are open for long,
        and runs of samples.
        """
        slices = self._slices
        over = list[SpanSlice]()
        events = b""
        if self._open is not None and len(self._open):
            slices, over = slices.with_batch(self._open)
            rows = _ordered_by_begin(self._open)
            calls = self._python_ids.call_ids(self._open)
            size = self._encode(self._open, rows, calls)
            # A copy of the names: these events are written again, with the names.
            names = dict(self._thread_names)
            threads = thread_events(_used_threads(self._open), names, self._pid)
            events = threads + self._memory[:size]
        spans = encode_spans([*over, *slices.open_slices()], self._pid, self._base_ns)
        runs = encode_runs(self._samples.waiting(self._open_ends()), self._pid, self._base_ns)
        return events + spans + runs

    def _open_ends(self) -> dict[int, int]:
        """The earliest end of the open ranges of each thread in the file, by its number."""
        ends: dict[int, int] = {}
        if self._open is not None:
            columns = (self._open.thread.tolist(), self._open.end_ns.tolist())
            for thread, end_ns in zip(*columns, strict=True):
                number = self._open.tracks[thread].number
                ends[number] = min(end_ns, ends.get(number, end_ns))
        return ends

    def _span_thread_events(self, spans: Sequence[ProgramSpan]) -> bytes:
        """The names of threads in which spans began, and no range so far."""
        threads = [
            span.thread for span in spans if trace_tid(span.thread) not in self._thread_names
        ]
        return thread_events(threads, self._thread_names, self._pid)


def _used_threads(batch: Batch) -> list[Track]:
    """The threads in which the batch's ranges began or ended."""
    used = np.zeros(len(batch.tracks), dtype=np.bool_)
    np.put(used, batch.thread, True)
    np.put(used, batch.end_thread, True)
    return [batch.tracks[index] for index in np.flatnonzero(used).tolist()]


def _ordered_by_begin(batch: Batch) -> NDArray[np.int64]:
    """The rows by event id: within a thread that is the order of begins, a parent before its
    children.
    """
    return np.argsort(batch.event_id, kind="stable").astype(np.int64, copy=False)


def _still_open(ranges: Batch | None, batch: Batch) -> Batch | None:
    """The open ranges that did not end with the batch.

    Ranges inside them must not end later than they do so far.
    """
    if ranges is None or not len(ranges) or not len(batch):
        return ranges
    rows = ~is_in(ranges.event_id, batch.event_id)
    return ranges.take(rows, end_ns=np.maximum(ranges.end_ns[rows], batch.end_ns.max()))


def _outermost(ranges: Batch) -> Batch:
    """The open ranges that began first, as many as the file shows."""
    return ranges.take(np.lexsort((ranges.event_id, ranges.start_ns))[:MAX_OPEN])
