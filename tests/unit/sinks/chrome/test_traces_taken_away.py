"""The user, or a cleaner of temporary files, takes the trace's name away while it is written: it ends there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batches import make_batch
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.counters import losses
from otel_recfn.sinks.chrome.writer import TraceWriter
from patience import PATIENCE_S


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace(path: Path) -> None:
    path.with_name("other").write_text("the user's")
    path.with_name("other").rename(path)


@pytest.mark.parametrize("take_away", [delete, move, replace])
def test_a_trace_whose_name_is_gone_ends(path: Path, take_away: Callable[[Path], None]) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([{"name": "before"}]))
    take_away(path)
    left = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(OSError, match="was removed or replaced"):
        writer.write(make_batch([{"name": "after"}]))
    writer.close()
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == left
    assert writer.failed == 0  # whoever takes the writer out counts that batch, once


def test_what_was_not_written_is_counted(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor.instrument(chrome_trace=str(path), modules=False)
    for turn in range(4):
        with record_function(f"op {turn}"):
            pass
        assert instrumentor.flush(PATIENCE_S) == (turn != 2)  # then the file is found to be another one, and is given up
        if turn == 1:
            replace(path)
    assert losses(instrumentor.counters()) == {"chrome_trace.dropped.error": 2}
    instrumentor.uninstrument()
    assert path.read_text() == "the user's"
    assert "was removed or replaced" in caplog.text
