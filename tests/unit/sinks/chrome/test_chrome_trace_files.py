"""The Chrome trace writer: which file it writes, and what is in it while it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.batches import make_batch
from helpers.forked_work import in_child
from helpers.trace_files import events_in, read_trace
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.chrome.writer import TraceWriter


def test_the_file_has_what_was_written_and_an_existing_one_is_replaced(path: Path) -> None:
    path.write_bytes(b"x" * 100_000)
    writer = TraceWriter(path)
    for count in range(1, 6):
        writer.write(make_batch([{"name": f"op {count}"}] * 50))
        assert [event["name"] for event in events_in(path, "X")] == [
            f"op {n}" for n in range(1, count + 1) for _ in range(50)
        ]
    writer.close()
    writer.close()
    assert len(read_trace(path)["traceEvents"]) >= 250
    assert len(events_in(path, "X")) == 250
    assert os.listdir(path.parent) == [path.name]


class TestFailure:
    @pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.gz", "trace.json.zip", ".json"])
    def test_another_suffix_is_an_error_that_names_one(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(SettingError, match=r"name it .*\.json\.gz"):
            TraceWriter(tmp_path / name)

    def test_a_missing_directory_is_an_error_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match=r"there is no directory .*; create it"):
            TraceWriter(tmp_path / "missing" / "trace.json")

    @pytest.mark.parametrize(
        "directory", ["closed/below", "/".join(["long" * 50] * 25)], ids=["closed", "long"]
    )
    def test_a_directory_that_cannot_be_looked_at_is_an_error_at_once(
        self, tmp_path: Path, directory: str
    ) -> None:
        (tmp_path / "closed").mkdir(mode=0)
        # The latter for root.
        with pytest.raises(SettingError, match=r"cannot be written|there is no directory"):
            TraceWriter(tmp_path / directory / "trace.json")

    def test_a_file_that_someone_else_writes_is_left_to_them(
        self, writer: TraceWriter, path: Path
    ) -> None:
        second = TraceWriter(path)
        second.write(make_batch([{"name": "second"}]))
        writer.write(make_batch([{"name": "first"}]))
        second.close()
        assert second.path.name == path.name.replace("trace", f"trace.pid{os.getpid()}")
        assert [event["name"] for event in events_in(path, "X")] == ["first"]
        assert [event["name"] for event in events_in(second.path, "X")] == ["second"]


class TestFork:
    def test_a_child_that_records_nothing_leaves_no_file(
        self, writer: TraceWriter, path: Path
    ) -> None:
        in_child(lambda: _write_in_child(writer, make_batch([])))
        writer.close()
        assert os.listdir(path.parent) == [path.name]


def _write_in_child(writer: TraceWriter, batch: Batch) -> None:
    own = writer.after_fork_in_child()
    own.write(batch)
    own.close()
