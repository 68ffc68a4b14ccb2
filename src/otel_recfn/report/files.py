"""Chrome traces as batches: ours and torch.profiler's, compressed or not, and ours also where a kill has cut them.

bytes ──► text ──► each event, as soon as it is parsed, into columns ──► ranges nested by time, a thread at a time ──► Batch
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from otel_recfn.errors import TraceFileError
from otel_recfn.report.process import Process
from otel_recfn.report.trace_events import TraceEvents

MOST_BASE_NS = 4_000_000_000_000_000_000
MOST_APART_NS = 60_000_000_000
"""Ranks and children of one run record at the same time, or nearly."""
WAY_OUT = "give files that chrome_trace=, profile().export_chrome_trace() or torch.profiler wrote"
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
    text, complete = _text(path)
    events, fields = _parsed(path, text, complete)
    base_ns = fields.get("baseTimeNanoseconds")
    batch = events.batch(base_ns if isinstance(base_ns, int) and 0 <= base_ns < MOST_BASE_NS else 0)
    if not len(batch):
        raise TraceFileError(f"{path} has no ranges: nothing ran while it was recorded, or it is no profile; {WAY_OUT}")
    return events.script, Process(_label(path, fields), batch)


def _label(path: Path, fields: dict[str, Any]) -> str:
    """What its name has beside others, as ours have; its rank, where there are several; else its name."""
    parts = _PARTS.findall(path.name)
    distributed = fields.get("distributedInfo")
    if not parts and isinstance(distributed, dict) and distributed.get("world_size", 1) not in (0, 1):
        return f"rank {distributed.get('rank', '?')}"
    return " ".join(parts) or path.name


def _text(path: Path) -> tuple[bytes, bool]:
    """What stands in it, decompressed, and whether that is all."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceFileError(f"{path} can't be read: {error.strerror or error}; look at its name and rights") from None
    if not data.startswith(b"\x1f\x8b"):
        return data, True
    parts = []
    try:
        while data.startswith(b"\x1f\x8b"):  # ours has many members
            member = zlib.decompressobj(31)
            parts.append(member.decompress(data))
            if not member.eof:
                return b"".join(parts), False
            data = member.unused_data
    except zlib.error as error:
        raise TraceFileError(f"{path} is damaged: {error}; copy or record it again") from None
    return b"".join(parts), True


def _parsed(path: Path, text: bytes, complete: bool) -> tuple[TraceEvents, dict[str, Any]]:
    """The events, and the fields beside them."""
    if not text.strip():
        raise TraceFileError(f"{path} is empty; {WAY_OUT}")
    loaded = _loaded(text) or _loaded_up_to_the_cut(text)
    if loaded is None and (text.lstrip().startswith((b"{", b"[")) or not complete):
        fact = "ends or breaks off in the middle of an event"
        raise TraceFileError(f"{path} {fact}: it was not written to its end; copy or record it again")
    if loaded is None:
        raise TraceFileError(f"{path} is no Chrome trace, as it isn't JSON; {WAY_OUT}")
    events, content = loaded
    if isinstance(content, list):
        return events, {}
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise TraceFileError(f"{path} is JSON, but no Chrome trace, as it has no traceEvents; {WAY_OUT}")
    return events, content


def _loaded(text: bytes) -> tuple[TraceEvents, Any] | None:
    """The events, and what is left of the JSON without them; None where it is none."""
    events = TraceEvents()
    try:
        return events, json.loads(text.decode("utf-8", "replace"), object_hook=events.take)
    except (ValueError, RecursionError):
        return None


def _loaded_up_to_the_cut(text: bytes) -> tuple[TraceEvents, Any] | None:
    """The same of a trace of ours that was not ended: an array with an event a line."""
    last = text.rfind(b",\n")
    return _loaded(text[:last] + b"]") if text.startswith(b"[") and last > 0 else None
