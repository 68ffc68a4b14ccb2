"""Killed, or interrupted by a signal handler that raises, between any two calls of the system."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.files import renaming, whole_file

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "pwrite", "ftruncate", "fchmod", "lseek", "link", "unlink", "rename", "replace")),
    *((os, name) for name in ("copy_file_range",) if hasattr(os, name)),
    (fcntl, "flock"),
    (whole_file, "exchange"),
    (whole_file, "move_to_free_name"),
]
TURNS = 4
BEFORE = json.dumps({"traceEvents": [{"ph": "X", "name": "an earlier run"}] * 500})


@pytest.fixture(params=[".json", ".json.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"trace{request.param}"


@pytest.fixture(params=["exchange", "links", "no links"])
def renames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the file system offers."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    if request.param != "exchange":
        monkeypatch.setattr(renaming, "_renameat2", None)
    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


def names_in(path: Path) -> list[str]:
    content = path.read_bytes()
    trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]


class Counting:
    """Does something after the n-th call of the system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: int, then: Callable[[], None]) -> None:
        self.calls = 0
        self._when, self._then = when, then
        for module, name in CALLS:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            try:
                return call(*arguments, **keywords)
            finally:
                self.calls += 1
                if self.calls == self._when:
                    self._then()

        return counted


def write_all(path: Path) -> None:
    sink = ChromeTraceSink(path)
    for turn in range(TURNS):
        sink.write(make_batch([{"name": f"op {turn}"}] * 3))
    sink.close(1.0)


def calls_of(path: Path) -> int:
    """How many a whole run takes."""
    with pytest.MonkeyPatch.context() as patch:
        counting = Counting(patch, 0, lambda: None)
        write_all(path)
    return counting.calls


def as_before(path: Path) -> None:
    path.write_bytes(gzip.compress(BEFORE.encode()) if path.suffix == ".gz" else BEFORE.encode())


def test_a_kill_leaves_the_earlier_trace_or_a_whole_one(path: Path, renames: str) -> None:
    """No moment without a whole file, but for one between two renames where there are neither exchanges nor links."""
    as_before(path)
    missing = 0
    for when in range(1, calls_of(path) + 1):
        as_before(path)
        child = os.fork()
        if child == 0:
            try:
                with pytest.MonkeyPatch.context() as patch:
                    Counting(patch, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
                    write_all(path)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        if renames == "no links" and not path.exists():
            missing += 1
            continue
        found = names_in(path)
        assert (
            found == ["an earlier run"] * 500
            or found == [f"op {turn}" for turn in range(TURNS) for _ in range(3)][: len(found)]
        )
        assert len(found) % 3 == 0 or len(found) == 500
    assert missing <= TURNS
    write_all(path)
    assert os.listdir(path.parent) == [path.name]


def test_an_interruption_costs_one_batch_at_most(path: Path, renames: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for when in range(1, 200):
        sink = ChromeTraceSink(path)
        shown: list[str] = []
        interrupted = False
        with pytest.MonkeyPatch.context() as patch:
            counting = Counting(patch, when, interrupt)
            for turn in range(TURNS):
                before = sink.counters()["events_written"]
                try:
                    sink.write(make_batch([{"name": f"op {turn}"}] * 3))
                except KeyboardInterrupt:
                    interrupted = True
                shown += [f"op {turn}"] * (sink.counters()["events_written"] - before)
                assert names_in(path) == shown
        counts = sink.counters()
        sink.close(1.0)
        assert names_in(path) == shown
        assert counts["events_written"] + counts["failed"] == TURNS * 3
        assert counts["failed"] <= 3 * interrupted
        ChromeTraceSink(path).close(1.0)  # sweeps what an interruption left
        assert os.listdir(path.parent) == [path.name]
        if not interrupted and counting.calls < when:
            break
    else:
        pytest.fail("more calls than expected")
