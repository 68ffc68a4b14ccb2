"""The user, or a cleaner of temporary files, takes names away while the trace is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batches import make_batch
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from patience import PATIENCE_S
from trace_files import names_in


def test_a_deleted_trace_comes_back_whole(path: Path) -> None:
    sink = ChromeTraceSink(path)
    for turn in range(5):
        sink.write(make_batch([{"name": f"op {turn}"}] * 50))
        if turn in (1, 2):
            path.unlink()
    sink.close(1.0)
    assert names_in(path) == [f"op {turn}" for turn in range(5) for _ in range(50)]
    assert os.listdir(path.parent) == [path.name]
    assert sink.counters()["reopened"] == 2


def test_a_trace_that_was_moved_is_not_written_any_more(path: Path) -> None:
    sink = ChromeTraceSink(path)
    sink.write(make_batch([{"name": "before"}]))
    moved = path.with_name("moved" + path.suffix)
    path.rename(moved)
    before = moved.read_bytes()
    for _ in range(4):
        sink.write(make_batch([{"name": "after"}]))
    sink.close(1.0)
    assert moved.read_bytes() == before
    assert names_in(path) == ["before", *["after"] * 4]


def test_hidden_files_that_were_deleted_are_made_again(path: Path) -> None:
    sink = ChromeTraceSink(path)
    for turn in range(5):
        sink.write(make_batch([{"name": f"op {turn}"}] * 50))
        for hidden in path.parent.glob(".*.next"):
            hidden.unlink()
    sink.close(1.0)
    assert names_in(path) == [f"op {turn}" for turn in range(5) for _ in range(50)]
    assert os.listdir(path.parent) == [path.name]


def test_another_file_in_its_place_ends_the_trace(path: Path) -> None:
    sink = ChromeTraceSink(path)
    sink.write(make_batch([{"name": "before"}]))
    other = path.with_name("other")
    other.write_text("the user's")
    other.rename(path)
    with pytest.raises(OSError, match="another file was put in the place of"):
        sink.write(make_batch([{"name": "after"}]))
    sink.close(0.0)
    assert path.read_text() == "the user's"
    assert os.listdir(path.parent) == [path.name]
    assert sink.counters()["failed"] == 0  # whoever takes the sink out counts that batch, once


def test_what_was_not_written_is_counted(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor.instrument(chrome_trace=str(path), modules=False)
    for turn in range(4):
        with record_function(f"op {turn}"):
            pass
        assert instrumentor.flush(PATIENCE_S) == (turn != 2)  # then the file is found to be another one, and is given up
        if turn == 1:
            path.with_name("other").write_text("the user's")
            path.with_name("other").rename(path)
    counts = instrumentor.counters()
    assert counts["chrome_trace.events_written"] == 2
    assert counts["chrome_trace.failed"] + counts["chrome_trace.abandoned"] + counts["chrome_trace.missed"] == 2
    instrumentor.uninstrument()
    assert path.read_text() == "the user's"
    assert "another file was put in the place" in caplog.text


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are looked up in /proc")
def test_a_new_file_of_the_same_inode_is_not_ours(path: Path) -> None:
    """Descriptors closed, the file deleted, another one made: file systems use an inode's number again at once."""
    sink = ChromeTraceSink(path)
    sink.write(make_batch([{"name": "before"}]))
    for number in os.listdir("/proc/self/fd"):
        if os.path.realpath(f"/proc/self/fd/{number}").startswith(str(path.parent)):
            os.close(int(number))
    path.unlink()
    path.write_text("the user's")
    with pytest.raises(OSError, match="removed or replaced"):
        sink.write(make_batch([{"name": "after"}]))
    sink.close(0.0)
    assert path.read_text() == "the user's"
