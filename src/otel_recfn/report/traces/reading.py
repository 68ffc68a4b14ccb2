"""A trace file, read: this package's, even if a kill cut it, or torch.profiler's.

    bytes ──► blocks of text ──► texts of whole events ──► their columns ──► Batch
              blocks.py          text.py                   events.py         batch.py

A file that is no trace is refused, with what is wrong and the way out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from otel_recfn.batches.wall import Block
from otel_recfn.errors import TraceFileError
from otel_recfn.model.events import RowKind
from otel_recfn.report.process import Process
from otel_recfn.report.traces.batch import recorded
from otel_recfn.report.traces.blocks import text_blocks
from otel_recfn.report.traces.events import TraceEvents
from otel_recfn.report.traces.text import TraceText, from_json

MAX_BASE_NS = 4_000_000_000_000_000_000
WAY_OUT = "give files that chrome_trace=, profile().export_chrome_trace() or torch.profiler wrote"
_PARTS = re.compile(r"(?<=\.)(?:rank|restart|pid)\d+(?=\.)")


class Trace(NamedTuple):
    """A file that was read."""

    path: Path
    script: str
    """The script that ran; empty if the trace doesn't name it."""
    run: str
    """The id of the run that the trace is of; empty if it has none, as torch.profiler's."""
    process: Process
    start_ns: int
    end_ns: int


def read_trace(path: Path, *, torch_names: bool = False) -> Trace:
    """Read a file. With ``torch_names`` module calls have torch.profiler's names.

    Raises:
        TraceFileError: it can't be read, is no trace, or has no ranges.
    """
    events, fields = _read_events(path)
    base_ns = fields.get("baseTimeNanoseconds", events.base_ns)
    has_base = isinstance(base_ns, int) and 0 <= base_ns < MAX_BASE_NS
    start_ns = base_ns if has_base else 0
    batch, activity, spans, samples = recorded(events, start_ns, torch_names=torch_names)
    if not events.seen:
        raise TraceFileError(
            f"{path} has no events, and so has no ranges to show: nothing was recorded; {WAY_OUT}"
        )
    if not bool((batch.kind == RowKind.RANGE).any()):
        reason = events.left_out or "nothing ran while it was recorded, or it is no profile"
        raise TraceFileError(f"{path} has no ranges: {reason}; {WAY_OUT}")
    left_out = "; ".join(filter(None, [events.left_out, _lost(fields)]))
    label = _process_label(path, fields)
    process = Process(
        label, batch, activity, left_out, path, spans, block=_block(fields), samples=samples
    )
    return Trace(
        path, events.script, events.run, process, int(batch.start_ns.min()), int(batch.end_ns.max())
    )


def _lost(fields: dict[str, Any]) -> str:
    """A sentence on the events that the trace says it lacks; empty if it lacks none."""
    count = fields.get("lost")
    if not isinstance(count, int) or count <= 0:
        return ""
    events = f"{count:,} events were" if count > 1 else "1 event was"
    return f"{events} lost as it was recorded"


def _block(fields: dict[str, Any]) -> Block | None:
    """The block that a profile recorded; None if the trace says none."""
    block = fields.get("block")
    if not isinstance(block, dict) or not block.keys() >= {*Block._fields}:
        return None
    found = Block(**{name: block[name] for name in Block._fields})
    numbers = [each for name, each in found._asdict().items() if name != "thread_name"]
    is_readable = all(isinstance(each, int) and 0 <= each < MAX_BASE_NS for each in numbers)
    return found._replace(thread_name=str(found.thread_name)) if is_readable else None


def _process_label(path: Path, fields: dict[str, Any]) -> str:
    """The rank, restart and process id in the file's name. If it has none: the rank in its fields,
    if there are several ranks, otherwise the file's name.
    """
    parts = _PARTS.findall(path.name)
    if parts:
        return " ".join(parts)
    distributed = fields.get("distributedInfo")
    if isinstance(distributed, dict) and distributed.get("world_size", 1) not in (0, 1):
        return f"rank {distributed.get('rank', '?')}"
    return path.name


def _read_events(path: Path) -> tuple[TraceEvents, dict[str, Any]]:
    """The events of a trace, and the fields beside them that are read."""
    events = TraceEvents()
    text = TraceText()
    is_empty = True
    for block in text_blocks(path):
        is_empty = is_empty and not block.strip()
        for part in text.add(block):
            events.add(part)
        if not text.is_json:
            break
    for part in text.finish():
        events.add(part)
    if reason := _reason_for_refusal(events, text, is_empty):
        raise TraceFileError(f"{path} {reason}")
    for cause, count in text.left_out.items():
        events.leave_out(cause, count)
    return events, text.fields


def _reason_for_refusal(events: TraceEvents, text: TraceText, is_empty: bool) -> str:
    """The reason for which a file is no trace that can be read, and the way out; empty if it can
    be read.
    """
    if is_empty:
        return f"is empty; {WAY_OUT}"
    if not text.has_events and (text.is_whole or from_json(text.remaining) is not None):
        return f"is no Chrome trace, as it has no traceEvents; {WAY_OUT}"
    if not text.is_json:
        return f"is no Chrome trace, as it isn't JSON; {WAY_OUT}"
    if not text.is_whole and (text.is_object or (text.remaining and not events.seen)):
        return (
            "ends or breaks off in the middle of an event: it was not written to its end; copy or"
            " record it again"
        )
    return ""
