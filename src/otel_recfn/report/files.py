"""Chrome traces read as batches: this package's, even if a kill cut them, and torch.profiler's; compressed or not.

blocks of bytes ──► parts of whole events ──► their columns ──► ranges nested by time, a thread at a time ──► Batch
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from otel_recfn.errors import TraceFileError
from otel_recfn.model.events import RowKind
from otel_recfn.report.recording import Process
from otel_recfn.report.trace_events import TraceEvents

MOST_BASE_NS = 4_000_000_000_000_000_000
MOST_APART_NS = 60_000_000_000
"""The longest pause between the traces of one run: its ranks and children record at nearly the same time."""
WAY_OUT = "give files that chrome_trace=, profile().export_chrome_trace() or torch.profiler wrote"
BLOCK_BYTES = 1 << 15
"""The bytes that are read at once: the events of more would leave the processor's cache, and take half as long again."""
_HEAD = re.compile(rb'\s*\[|\s*\{.*"traceEvents"\s*:\s*\[', re.DOTALL)
"""The text of a trace before its first event."""
_PARTS = re.compile(r"(?<=\.)(?:rank|restart|pid)\d+(?=\.)")


def read_processes(paths: Sequence[Path]) -> list[Process]:
    """A process for each file, in their order.

    Raises:
        TraceFileError: a file that can't be read, is no trace or has no ranges; or files that are not of one run.
    """
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise TraceFileError(f"{twice.pop()} is given twice; give each file once")
    programs, processes = zip(*[_script_and_process(path) for path in paths], strict=True)
    different = sorted({*filter(None, programs)})
    if len(different) > 1:
        raise TraceFileError(
            f"the traces are of different programs: {', '.join(different)}; make a report of each"
        )
    by_begin = sorted(
        zip(paths, processes, strict=True), key=lambda each: int(each[1].batch.start_ns.min())
    )
    for (before, earlier), (after, later) in pairwise(by_begin):
        apart_ns = int(later.batch.start_ns.min() - earlier.batch.end_ns.max())
        if apart_ns > MOST_APART_NS:
            apart = f"{after} begins {apart_ns / 1e9:.0f} s after {before} ends"
            raise TraceFileError(f"{apart}, so they are not of one run; make a report of each")
    labels = [process.label for process in processes]
    names = [
        label if labels.count(label) == 1 else str(path)
        for label, path in zip(labels, paths, strict=True)
    ]
    return [process._replace(label=name) for process, name in zip(processes, names, strict=True)]


def _script_and_process(path: Path) -> tuple[str, Process]:
    """The script that ran, or an empty text if the trace doesn't name it; and the process with what it recorded."""
    events, fields = _read_events(path)
    base_ns = fields.get("baseTimeNanoseconds", events.base_ns)
    batch = events.batch(base_ns if isinstance(base_ns, int) and 0 <= base_ns < MOST_BASE_NS else 0)
    if not bool((batch.kind == RowKind.RANGE).any()):
        raise TraceFileError(
            f"{path} has no ranges: nothing ran while it was recorded, or it is no profile; {WAY_OUT}"
        )
    return events.script, Process(_process_label(path, fields), batch)


def _process_label(path: Path, fields: dict[str, Any]) -> str:
    """The rank, restart and process id in the file's name; else the rank in its fields, if there are several; else its name."""
    parts = _PARTS.findall(path.name)
    distributed = fields.get("distributedInfo")
    if (
        not parts
        and isinstance(distributed, dict)
        and distributed.get("world_size", 1) not in (0, 1)
    ):
        return f"rank {distributed.get('rank', '?')}"
    return " ".join(parts) or path.name


def _read_events(path: Path) -> tuple[TraceEvents, dict[str, Any]]:
    """The events of a trace, and the fields beside them."""
    events, text, head = TraceEvents(), bytearray(), b""
    for block in _decompressed_blocks(path):
        text += block
        if not head and (begin := _HEAD.match(text)):
            head = begin[0]
            del text[: len(head)]
        end = _end_of_an_event(text) if head else 0
        part = _from_json(b"[" + text[:end] + b"]") if end else None
        if part is not None:
            events.add(part)
            del text[: end + 1]
    if head.lstrip().startswith(b"{"):
        before, after = _from_json(head + b"]}"), _from_json(b'{"traceEvents":[' + text)
        if before is not None and after is not None:
            events.add(after["traceEvents"])
            return events, before | after
    elif head:
        rest = _from_json(b"[" + text) or _from_json(b"[" + text[: text.rfind(b",\n")] + b"]")
        if rest is not None or events.count:
            events.add(rest or ())
            return events, {}
    raise TraceFileError(f"{path} {_reason_and_way_out(path, head, bytes(text))}")


def _decompressed_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a file, decompressed, up to where a kill cut it."""
    try:
        with open(path, "rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
            opened = unpacked if file.peek(2).startswith(b"\x1f\x8b") else file
            while block := opened.read1(BLOCK_BYTES):
                yield block
    except EOFError:
        return
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceFileError(f"{path} is damaged: {error}; copy or record it again") from None
    except OSError as error:
        raise TraceFileError(
            f"{path} can't be read: {error.strerror or error}; look at its name and rights"
        ) from None


def _end_of_an_event(text: bytearray) -> int:
    """The place of the last comma between two events; 0 where there is none."""
    begin = text.rfind(b'"ph"')
    comma = text.rfind(b",", 0, max(begin, 0))
    return comma if comma > 0 and text[comma + 1 : begin].split() == [b"{"] else 0


def _from_json(text: bytes | bytearray) -> Any:
    """The value of a text in JSON; None if it isn't JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _reason_and_way_out(path: Path, head: bytes, text: bytes) -> str:
    """The reason for which a file is no trace, and the way out."""
    if not path.stat().st_size:
        return f"is empty; {WAY_OUT}"
    if not head and _from_json(text) is not None:
        return f"is JSON, but no Chrome trace, as it has no traceEvents; {WAY_OUT}"
    if head or not text or text.lstrip().startswith(b"{"):
        return "ends or breaks off in the middle of an event: it was not written to its end; copy or record it again"
    return f"is no Chrome trace, as it isn't JSON; {WAY_OUT}"
