"""Trace files of slices that a test names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def slice_of(name: str, ts: float, dur: float, **others: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        **others,
    }


def write_trace(path: Path, *events: dict[str, Any], **fields: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": list(events), **fields}))
    return path
