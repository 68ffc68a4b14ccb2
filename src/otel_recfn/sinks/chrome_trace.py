"""Chrome trace files: what chrome://tracing, Perfetto and HolisticTraceAnalysis read, written while the program runs.

The file has the form of torch.profiler's: an object with ``schemaVersion``, ``distributedInfo`` and ``traceEvents``. After
every batch it is whole, valid JSON in UTF-8 (``whole_file.py``). Times are microseconds with three decimals since
``baseTimeNanoseconds``, the start of a week: readers take a number for a double, which Perfetto turns back into the right
nanosecond up to 2^42 microseconds, seven weeks. (Since the start of torch.profiler's window of three months, a quarter of the
slices came out a nanosecond late, over the end of the slice around them; since the Unix epoch, a double only holds quarters of
a microsecond.) Files of the same week share their time axis.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch, ThreadInfo
from otel_recfn.model.errors import SettingError
from otel_recfn.model.events import EventFlag
from otel_recfn.model.json_text import json_of_utf8
from otel_recfn.sinks.chrome_encoder import encode_events, encode_flows, trace_tid
from otel_recfn.sinks.gzip_stream import GzipStream
from otel_recfn.sinks.whole_file import FileInUseError, WholeFile
from otel_recfn.transforms.links import ForwardBackwardLinks, Links

log = logging.getLogger("otel_recfn")

SUFFIXES = (".json.gz", ".json")
FOOTER = b"\n]}\n"
ROWS_AT_ONCE = 4096
"""Rows encoded in one go: a megabyte, which stays in the cache."""
MOST_ROWS_AT_ONCE = 32_768
"""In a large batch: each go asks for the GIL a few times, which a program with busy threads gives away 5 ms late each time."""
MAX_NAMES_BESIDE = 1000
WEEK_NS = 7 * 86_400 * 1_000_000_000


Data = bytes | memoryview


class _Stream(Protocol):
    """From text to the file's bytes."""

    def put(self, data: Data) -> Data:
        """What follows in the file."""

    def settle(self) -> bytes:
        """What follows in the file so that all that was put is in it."""

    def tail(self) -> bytes:
        """What ends the file here, its text ending with FOOTER."""


class _Plain:
    def put(self, data: Data) -> Data:
        return data

    def settle(self) -> bytes:
        return b""

    def tail(self) -> bytes:
        return FOOTER


class ChromeTraceSink:
    """Writes every batch to a Chrome trace file.

    A process that finds the file in use by another one (a child started with the same environment) and a forked child write
    their own: ``trace.pid<pid>.json`` beside ``trace.json``.

    Args:
        path: ends in ``.json`` or ``.json.gz``; an existing file is replaced.
        create_now: make the file at once, an empty trace; else with the first event.

    Raises:
        SettingError: the suffix is another one, or the file cannot be made.
    """

    name = "chrome_trace"

    def __init__(self, path: str | os.PathLike[str], *, create_now: bool = True) -> None:
        self._asked_path = Path(path)
        _checked_suffix(self._asked_path)
        self.path = self._asked_path
        """Where the trace is written."""
        self._file: WholeFile | None = None
        self._closed = False
        self._links = ForwardBackwardLinks()
        self._thread_names: dict[int, str] = {}
        self._memory = bytearray()
        self._counts = {"events_written": 0, "flows_written": 0, "bytes_written": 0, "failed": 0}
        if create_now:
            self._file = self._open()

    def write(self, batch: Batch) -> None:
        """Append the batch's events and show them. After an OSError or a MemoryError the file is what it was before."""
        if not len(batch) or self._closed:
            return
        try:
            self._write(batch)
        except (OSError, MemoryError):
            self._counts["failed"] += len(batch)
            raise

    def flush(self, timeout_s: float) -> bool:
        """Nothing to wait for: what was written is in the file."""
        return True

    def close(self, timeout_s: float) -> None:
        """Close the file; it is whole already."""
        if self._file is not None and not self._closed:
            self._file.close()
        self._closed = True

    def counters(self) -> Mapping[str, int]:
        """Events and forward-backward arrows in the file, its size, and events of batches that failed."""
        return dict(self._counts)

    def after_fork_in_child(self) -> ChromeTraceSink:
        """A sink with a file of its own beside this one, made with its first event."""
        if self._file is not None and not self._closed:
            self._file.close_in_child()
        self._closed = True
        child = ChromeTraceSink(self._asked_path, create_now=False)
        child.path = _path_of_process(self._asked_path)
        return child

    def _open(self) -> WholeFile:
        self._pid = os.getpid()
        self._base_ns = time.time_ns() // WEEK_NS * WEEK_NS
        self._stream: _Stream = GzipStream(FOOTER) if self.path.suffix == ".gz" else _Plain()
        head = b"".join((self._stream.put(_header(self._base_ns) + _process_events(self._pid)), self._stream.settle()))
        for path in itertools.chain((self.path,), _paths_beside(self._asked_path)):
            try:
                file = WholeFile(path, head, self._stream.tail())
            except FileInUseError:  # by another process; in containers, even by one of the same pid
                continue
            except OSError as error:
                raise SettingError(_cannot_write(self._asked_path, error)) from error
            if path != self.path:
                log.warning("%s is being written already; process %d writes %s", self.path, self._pid, path)
            self.path = path
            return file
        raise SettingError(
            f"chrome_trace={str(self._asked_path)!r} and the names beside it are being written; choose another path"
        )

    def _write(self, batch: Batch) -> None:
        if self._file is None:
            self._file = self._open()
        self._file.append(self._stream.put(self._thread_events(batch)))
        # in each thread the order of begin, a parent before its children
        rows = np.argsort(batch.event_id, kind="stable").astype(np.int64, copy=False)
        at_once = min(max(ROWS_AT_ONCE, len(rows) // 16), MOST_ROWS_AT_ONCE)
        for first in range(0, len(rows), at_once):
            chosen = rows[first : first + at_once]
            self._append_encoded(encode_events(batch, chosen, self._pid, self._base_ns, self._memory))
        arrows = _arrows(batch, self._links.match(batch))
        first_id = self._counts["flows_written"] + 1
        self._append_encoded(encode_flows(*arrows, first_id, self._pid, self._base_ns, self._memory))
        self._file.append(self._stream.settle())
        self._counts["bytes_written"] = self._file.show(self._stream.tail())
        self._counts["events_written"] += len(batch)
        self._counts["flows_written"] += len(arrows[0])

    def _append_encoded(self, size: int) -> None:
        assert self._file is not None
        with memoryview(self._memory) as memory, memory[:size] as encoded:
            self._file.append(self._stream.put(encoded))

    def _thread_events(self, batch: Batch) -> bytes:
        """The names of the threads that are new in the batch, or have another name than before."""
        events = []
        used = np.zeros(len(batch.threads), dtype=np.bool_)
        used[batch.thread] = used[batch.end_thread] = True
        for index in np.flatnonzero(used).tolist():
            thread = batch.threads[index]
            tid = trace_tid(thread)
            name = thread.name or f"thread {tid}"
            if self._thread_names.get(tid) != name:
                self._thread_names[tid] = name
                events.append(_metadata("thread_name", self._pid, tid, {"name": name}))
                events.append(_metadata("thread_sort_index", self._pid, tid, {"sort_index": thread.number}))
        return "".join(f",\n{event}" for event in events).encode()


Arrows = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]


def _arrows(batch: Batch, links: Links) -> Arrows:
    """Thread and start of the forward slice, thread and start of the backward slice."""
    rows = links.row
    is_slice = ((batch.flags[rows] & EventFlag.ASYNC) == 0) & (batch.thread[rows] == batch.end_thread[rows])
    rows = rows[is_slice]
    from_tid = _tids(links.threads)[links.thread[is_slice]]
    return from_tid, links.start_ns[is_slice], _tids(batch.threads)[batch.thread[rows]], batch.start_ns[rows]


def _tids(threads: Sequence[ThreadInfo]) -> NDArray[np.uint64]:
    return np.array([trace_tid(thread) for thread in threads], dtype=np.uint64)


def _header(base_ns: int) -> bytes:
    distributed = {"backend": "", "rank": _environment_number("RANK", 0), "world_size": _environment_number("WORLD_SIZE", 1)}
    fields: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": distributed,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
    }
    return f'{json.dumps(fields)[:-1]}, "traceEvents": [\n'.encode()


def _process_events(pid: int) -> bytes:
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    rank = _environment_number("RANK", 0)
    events = (
        _metadata("process_name", pid, 0, {"name": program}),
        _metadata("process_labels", pid, 0, {"labels": f"rank {rank}"}),
        _metadata("process_sort_index", pid, 0, {"sort_index": rank}),
    )
    return ",\n".join(events).encode()


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json_of_utf8(json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}, ensure_ascii=False))


def _environment_number(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else default


def _checked_suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    name = path.stem.lstrip(".") or "trace"
    raise SettingError(f"chrome_trace={str(path)!r} is no name that ends in .json or .json.gz; name it {name}.json.gz")


def _path_of_process(path: Path) -> Path:
    suffix = _checked_suffix(path)
    return path.with_name(f"{path.name.removesuffix(suffix)}.pid{os.getpid()}{suffix}")


def _paths_beside(path: Path) -> Iterator[Path]:
    own = _path_of_process(path)
    suffix = _checked_suffix(path)
    yield own
    for number in range(2, MAX_NAMES_BESIDE):
        yield own.with_name(f"{own.name.removesuffix(suffix)}-{number}{suffix}")


def _cannot_write(path: Path, error: OSError) -> str:
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        return f"chrome_trace={str(path)!r}: there is no directory {str(folder)!r}; create it or choose another path"
    return f"chrome_trace={str(path)!r} cannot be written ({error.strerror}); choose a path that this user can write"
