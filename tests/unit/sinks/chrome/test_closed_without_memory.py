"""A trace whose thread finds no memory for closing it is closed all the same, a little later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batches import make_batch
from otel_recfn.batches.links import SharedLinks
from otel_recfn.sinks.chrome.background import TraceFileWriter
from otel_recfn.sinks.files.last_minute import RemovedAtSigterm
from patience import PATIENCE_S
from trace_files import names_in

pytestmark = pytest.mark.one_python


def test_no_hidden_file_is_left_of_a_trace_that_is_closed_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, call_off, failures = tmp_path / "trace.json", RemovedAtSigterm.call_off, [MemoryError, MemoryError]

    def call_off_without_memory(held: RemovedAtSigterm) -> None:
        if failures:
            raise failures.pop()
        call_off(held)

    writer = TraceFileWriter(str(path), 1 << 20, SharedLinks())
    writer.create()
    writer.sink.write(make_batch([{"name": "written"}]))
    assert writer.sink.flush(PATIENCE_S)
    monkeypatch.setattr(RemovedAtSigterm, "call_off", call_off_without_memory)
    writer.sink.close(PATIENCE_S)
    assert not failures
    assert os.listdir(tmp_path) == ["trace.json"]
    assert names_in(path) == ["written"]
