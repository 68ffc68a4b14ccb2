"""What is in the Chrome traces that a test wrote."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any


def read_trace(path: Path) -> dict[str, Any]:
    """The whole document, its times exact."""
    content = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content, parse_float=Decimal)
    return trace


def events_in(path: Path, phases: str = "") -> list[dict[str, Any]]:
    """The events, or those of some phases."""
    return [event for event in read_trace(path)["traceEvents"] if event["ph"] in (phases or event["ph"])]


def names_in(path: Path) -> list[str]:
    """The names of the slices, in their order."""
    return [event["name"] for event in events_in(path, "X")]
