"""A batch that somebody keeps takes as much memory as its rows, whatever else is open or was recorded meanwhile."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording_helpers import ASYNC, Worker

from otel_recfn.model.events import ALL_SCOPES_MASK, EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from small_process import Run, in_small_process

__all__ = ["in_small_process"]

DRAINS, ROWS = 400, 3
MIB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory a process has is read as Linux tells it")
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("flags", [0, ASYNC])
def test_of_few_rows_beside_many_open_ranges(recorder: Recorder, flags: int, elsewhere: bool, in_small_process: Run) -> None:
    kind = type(recorder)
    alone, beside = [in_small_process(memory_of_kept_drains, kind, many, flags, elsewhere) for many in (0, 4000)]
    assert beside < alone + 4 * MIB, "each batch has room for what stays open"


def memory_of_kept_drains(kind: Callable[[], Recorder], open_ranges: int, flags: int, elsewhere: bool) -> int:
    """How much more memory the process has after many small drains whose batches are kept."""
    recorder, worker = kind(), Worker()
    of: Callable[..., Any] = worker.call if elsewhere else called_here
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    try:
        left = [of(begin, recorder, flags) for _ in range(open_ranges)]
        kept, before = [recorder.drain()], resident()
        for _ in range(DRAINS):
            for _ in range(ROWS):
                recorder.end(begin(recorder, 0))
            kept.append(recorder.drain())
        grown = resident() - before
        for event_id in reversed(left):
            of(recorder.end, event_id)
        return grown
    finally:
        recorder.stop()
        recorder.drain(close_open=True)
        worker.stop()


def called_here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def begin(recorder: Recorder, flags: int) -> int:
    return recorder.begin("range", int(RecordScope.USER_SCOPE), int(EventSource.RECORD_FUNCTION), "", flags)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
