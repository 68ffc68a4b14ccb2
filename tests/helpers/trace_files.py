"""What is in the Chrome traces that a test wrote."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

from otel_recfn.batches.sampled_functions import SAMPLED
from otel_recfn.sinks.chrome.trace_file import WEEK_NS


def read_trace(path: Path) -> dict[str, Any]:
    """A finished trace: the whole document, its times exact."""
    trace = _read(path)
    assert isinstance(trace, dict), "the trace is not finished"
    return trace


def base_ns() -> int:
    """What the times of a trace are relative to that was begun just now."""
    return time.time_ns() // WEEK_NS * WEEK_NS


def events_in(path: Path, phases: str = "") -> list[dict[str, Any]]:
    """The events, or those of some phases, of a finished trace or one that is being written; but
    for samples, which a slow machine takes of any program.
    """
    return [
        event
        for event in _all_events(path)
        if event["ph"] in (phases or event["ph"]) and event.get("cat") != SAMPLED
    ]


def samples_in(path: Path) -> list[dict[str, Any]]:
    """The runs of samples."""
    return [event for event in _all_events(path) if event.get("cat") == SAMPLED]


def _all_events(path: Path) -> list[dict[str, Any]]:
    trace = _read(path)
    events: list[dict[str, Any]] = trace if isinstance(trace, list) else trace["traceEvents"]
    return events


def names_in(path: Path) -> list[str]:
    """The names of the slices, in their order."""
    return [event["name"] for event in events_in(path, "X")]


def names_in_cut(path: Path) -> list[str]:
    """The same of a trace that may be cut anywhere, as programs read an array without its end."""
    names = []
    for line in _as_far_as_it_goes(path).splitlines():
        try:
            event = json.loads(line.strip(" ,"))
        except ValueError:  # the array's brackets, and where it is cut
            continue
        names += [event["name"]] * (event["ph"] == "X")
    return names


def _read(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(
        gzip.decompress(content) if path.suffix == ".gz" else content, parse_float=Decimal
    )


def _as_far_as_it_goes(path: Path) -> str:
    content = path.read_bytes()
    text = b""
    if path.suffix != ".gz":
        return content.decode(errors="ignore")
    while content:
        reader = zlib.decompressobj(wbits=31)
        text += reader.decompress(content)
        content = reader.unused_data
    return text.decode(errors="ignore")
