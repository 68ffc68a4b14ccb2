"""Chrome traces as batches: ours and torch.profiler's, compressed or not, and ours also where a kill has cut them.

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
from otel_recfn.model.events import EventKind
from otel_recfn.report.recording import Process
from otel_recfn.report.trace_events import TraceEvents

MOST_BASE_NS = 4_000_000_000_000_000_000
MOST_APART_NS = 60_000_000_000
"""Ranks and children of one run record at the same time, or nearly."""
WAY_OUT = "give files that chrome_trace=, profile().export_chrome_trace() or torch.profiler wrote"
BLOCK = 1 << 15
"""Bytes that are read at once: what is parsed of more leaves the processor's cache, which costs half of the time again."""
_BEGIN = re.compile(rb'\s*\[|\s*\{.*"traceEvents"\s*:\s*\[', re.DOTALL)
"""What stands before the events."""
_PARTS = re.compile(r"(?<=\.)(?:rank|restart|pid)\d+(?=\.)")


def read_processes(paths: Sequence[Path]) -> list[Process]:
    """A process for each file, in their order.

    Raises:
        TraceFileError: a file that can't be read, is no trace or has no ranges; or files that are not of one run.
    """
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise TraceFileError(f"{twice.pop()} is given twice; give each file once")
    programs, processes = zip(*[_process(path) for path in paths], strict=True)
    different = sorted({*filter(None, programs)})
    if len(different) > 1:
        raise TraceFileError(f"the traces are of different programs: {', '.join(different)}; make a report of each")
    by_begin = sorted(zip(paths, processes, strict=True), key=lambda each: int(each[1].batch.start_ns.min()))
    for (before, earlier), (after, later) in pairwise(by_begin):
        apart_ns = int(later.batch.start_ns.min() - earlier.batch.end_ns.max())
        if apart_ns > MOST_APART_NS:
            apart = f"{after} begins {apart_ns / 1e9:.0f} s after {before} ends"
            raise TraceFileError(f"{apart}, so they are not of one run; make a report of each")
    labels = [process.label for process in processes]
    names = [label if labels.count(label) == 1 else str(path) for label, path in zip(labels, paths, strict=True)]
    return [process._replace(label=name) for process, name in zip(processes, names, strict=True)]


def _process(path: Path) -> tuple[str, Process]:
    """The script that ran, where a trace says that, and what was recorded."""
    events, fields = _read(path)
    base_ns = fields.get("baseTimeNanoseconds", events.base_ns)
    batch = events.batch(base_ns if isinstance(base_ns, int) and 0 <= base_ns < MOST_BASE_NS else 0)
    if not bool((batch.kind == EventKind.RANGE).any()):
        raise TraceFileError(f"{path} has no ranges: nothing ran while it was recorded, or it is no profile; {WAY_OUT}")
    return events.script, Process(_label(path, fields), batch)


def _label(path: Path, fields: dict[str, Any]) -> str:
    """What its name has beside others, as ours have; its rank, where there are several; else its name."""
    parts = _PARTS.findall(path.name)
    distributed = fields.get("distributedInfo")
    if not parts and isinstance(distributed, dict) and distributed.get("world_size", 1) not in (0, 1):
        return f"rank {distributed.get('rank', '?')}"
    return " ".join(parts) or path.name


def _read(path: Path) -> tuple[TraceEvents, dict[str, Any]]:
    """The events, and the fields beside them."""
    events, text, head = TraceEvents(), bytearray(), b""
    for block in _blocks(path):
        text += block
        if not head and (begin := _BEGIN.match(text)):
            head = begin[0]
            del text[: len(head)]
        end = _end_of_an_event(text) if head else 0
        part = _loaded(b"[" + text[:end] + b"]") if end else None
        if part is not None:
            events.add(part)
            del text[: end + 1]
    if head.lstrip().startswith(b"{"):
        before, after = _loaded(head + b"]}"), _loaded(b'{"traceEvents":[' + text)
        if before is not None and after is not None:
            events.add(after["traceEvents"])
            return events, before | after
    elif head:
        rest = _loaded(b"[" + text) or _loaded(b"[" + text[: text.rfind(b",\n")] + b"]")
        if rest is not None or events.count:
            events.add(rest or ())
            return events, {}
    raise TraceFileError(f"{path} {_fault(path, head, bytes(text))}")


def _blocks(path: Path) -> Iterator[bytes]:
    """What stands in it, decompressed, up to where a kill cut it."""
    try:
        with open(path, "rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
            opened = unpacked if file.peek(2).startswith(b"\x1f\x8b") else file
            while block := opened.read1(BLOCK):
                yield block
    except EOFError:
        return
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceFileError(f"{path} is damaged: {error}; copy or record it again") from None
    except OSError as error:
        raise TraceFileError(f"{path} can't be read: {error.strerror or error}; look at its name and rights") from None


def _end_of_an_event(text: bytearray) -> int:
    """The place of the last comma between two events; 0 where there is none."""
    begin = text.rfind(b'"ph"')
    comma = text.rfind(b",", 0, max(begin, 0))
    return comma if comma > 0 and text[comma + 1 : begin].split() == [b"{"] else 0


def _loaded(text: bytes | bytearray) -> Any:
    """The value of JSON; None where it is none."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _fault(path: Path, head: bytes, text: bytes) -> str:
    """What is wrong with a file that is no trace, and the way out."""
    if not path.stat().st_size:
        return f"is empty; {WAY_OUT}"
    if not head and _loaded(text) is not None:
        return f"is JSON, but no Chrome trace, as it has no traceEvents; {WAY_OUT}"
    if head or not text or text.lstrip().startswith(b"{"):
        return "ends or breaks off in the middle of an event: it was not written to its end; copy or record it again"
    return f"is no Chrome trace, as it isn't JSON; {WAY_OUT}"
