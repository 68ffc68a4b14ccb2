"""Trouble that passes: a full disk, no free descriptor. The trace goes on behind a counted gap."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from forked import in_child
from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.chrome import trace_file as chrome_trace_file
from otel_recfn.sinks.chrome.writer import TraceWriter
from trace_files import events_in, names_in, names_in_cut

pytestmark = pytest.mark.one_python


def test_a_full_disk_costs_the_batches_that_meet_it(writer: TraceWriter, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer.write(make_batch([{"name": "before"}]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10_000, limits[1]))
    try:
        for _ in range(3):
            writer.write(make_batch([{"name": f"op {random.random()}"} for _ in range(10_000)]))
            assert names_in_cut(path) == ["before"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write(make_batch([{"name": "after"}]))
    writer.close()
    assert names_in(path) == ["before", "after"]
    assert os.listdir(path.parent) == [path.name]
    assert writer.failed == 30_000
    [told] = [record for record in caplog.records if "File too large" in record.getMessage()]
    assert "counted" in told.getMessage()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), OSError(errno.EDQUOT, "quota")])
def test_at_any_moment(path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Whatever call fails: each batch is in the file whole or counted, and no arrow begins nowhere."""
    chance = random.Random(11)
    failing = 0.0

    def sometimes(call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any) -> Any:
            if chance.random() < failing:
                raise error
            return call(*arguments)

        return replacement

    for module, name in (
        (os, "pwrite"),
        (os, "ftruncate"),
        (chrome_trace_file, "encode_events"),
        (chrome_trace_file, "encode_flows"),
    ):
        monkeypatch.setattr(module, name, sometimes(getattr(module, name)))
    writer = TraceWriter(path)
    failing = 0.05
    written: list[str] = []
    for turn in range(60):
        writer.write(make_batch(step(turn)))
        if writer.failed + len(written) == 40 * turn:
            written += [str(row["name"]) for row in step(turn)]
    failing = 0.0
    writer.write(make_batch(step(60)))
    written += [str(row["name"]) for row in step(60)]
    writer.close()
    assert names_in(path) == written
    assert writer.failed == 61 * 40 - len(written) > 0
    assert len(written) > 40 * 10
    starts = {(event["tid"], event["ts"]) for event in events_in(path) if event["ph"] == "X"}
    arrows = [event for event in events_in(path) if event["ph"] in "sf"]
    assert arrows
    assert all((event["tid"], event["ts"]) in starts for event in arrows)
    assert [event["ph"] for event in arrows].count("s") == len(arrows) / 2
    assert os.listdir(path.parent) == [path.name]


def step(turn: int) -> list[dict[str, Any]]:
    """Forward ranges, whose backward ranges come in the next turn."""
    start = 1_700_000_000_000_000_000 + turn * 1_000_000
    forward = [
        {"name": f"forward {turn}", "sequence_nr": turn * 20 + n, "start_ns": start + n * 100, "end_ns": start + n * 100 + 50}
        for n in range(20)
    ]
    backward = [
        {
            "name": f"backward {turn}",
            "scope": RecordScope.BACKWARD_FUNCTION,
            "forward_thread_id": 1,
            "sequence_nr": (turn - 1) * 20 + n,
            "start_ns": start + 5000 + n * 100,
            "end_ns": start + 5050 + n * 100,
        }
        for n in range(20)
    ]
    return forward + backward


def test_no_free_descriptor_for_a_child(writer: TraceWriter, path: Path) -> None:
    writer.write(make_batch([{"name": "parent"}]))
    child = in_child(lambda: write_without_descriptors(writer))
    beside = path.with_name(path.name.replace("trace", f"trace.pid{child}"))
    assert names_in(beside) == ["after"]


def write_without_descriptors(writer: TraceWriter) -> None:
    own = writer.after_fork_in_child()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    own.write(make_batch([{"name": "lost"}]))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    own.write(make_batch([{"name": "after"}]))
    own.close()
    assert own.failed == 1


def test_a_file_that_is_open_needs_no_further_descriptor(writer: TraceWriter, path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        for _ in range(3):
            writer.write(make_batch([{}]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(names_in(path)) == 3
