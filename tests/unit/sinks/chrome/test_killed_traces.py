"""Killed: at any moment, and between any two calls of the system."""

from __future__ import annotations

import fcntl
import gzip
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from forked import killed_in_child
from otel_recfn.sinks.chrome.writer import TraceWriter
from perfetto_ui import ask_perfetto
from small_process import Run
from trace_files import events_in, names_in_cut
from trace_kills import kill_one

pytestmark = pytest.mark.one_python

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "pwrite", "ftruncate", "fchmod", "lseek", "link", "unlink", "replace")),
    (fcntl, "flock"),
]
TURNS = 4
BEFORE = '[\n{"ph": "X", "name": "an earlier run"}\n]\n'
KILLS = 40


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
    writer = TraceWriter(path)
    for turn in range(TURNS):
        writer.write(make_batch([{"name": f"op {turn}"}] * 3))
    writer.close()


def calls_of(path: Path) -> int:
    """How many a whole run takes, where there is an earlier trace."""
    path.write_text(BEFORE)
    with pytest.MonkeyPatch.context() as patch:
        counting = Counting(patch, 0, lambda: None)
        write_all(path)
    return counting.calls


def test_a_kill_leaves_the_earlier_trace_or_the_batches_that_were_written(path: Path, in_small_process: Run) -> None:
    in_small_process(killed_after_each_call, path)


def killed_after_each_call(path: Path) -> None:
    calls, seen = calls_of(path), set()
    for when in range(1, calls + 1):
        path.write_bytes(gzip.compress(BEFORE.encode()) if path.suffix == ".gz" else BEFORE.encode())
        killed_in_child(partial(write_until_call, path, when))
        found = names_in_cut(path)
        if found != ["an earlier run"]:
            assert found == [f"op {turn}" for turn in range(TURNS) for _ in range(3)][: len(found)]
            assert len(found) % 3 == 0
        seen.add(len(found))
    assert seen == {0, 1, 3, 6, 9, 12}


def write_until_call(path: Path, when: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Counting(patch, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
        write_all(path)
    os._exit(1)  # it should not have come so far


def test_a_kill_at_any_moment_leaves_what_was_written_before(path: Path, in_small_process: Run) -> None:
    in_small_process(kill_writers, path)


def kill_writers(path: Path) -> None:
    chance = random.Random(3)
    for _ in range(KILLS):
        kill_one(path, chance)


SLICES = "select count(*) from slice"
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def test_perfetto_opens_a_trace_whose_process_was_killed(path: Path) -> None:
    killed_in_child(partial(write_twice, path))
    assert ask_perfetto(path, SLICES) == [[(len(events_in(path, "X")),)]]


def test_perfetto_opens_a_trace_that_was_killed_amid_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object's last fields are there, its beginning isn't yet."""

    def work() -> None:
        writer = write_twice(path)
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda *given: write(*given) if given[2] else os.kill(os.getpid(), signal.SIGKILL))
        writer.close()

    killed_in_child(work)
    assert names_in_cut(path) == ["op"] * 200
    assert ask_perfetto(path, SLICES, COMPLAINTS) == [[(200,)], []]


def write_twice(path: Path) -> TraceWriter:
    writer, now_ns = TraceWriter(path), time.time_ns()
    for turn in range(2):
        starts = range(now_ns + turn * 1000, now_ns + turn * 1000 + 100)
        writer.write(make_batch([{"name": "op", "start_ns": start, "end_ns": start + 1} for start in starts]))
    return writer


def test_perfetto_opens_a_text_that_is_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    killed_in_child(partial(write_twice, path))
    content = path.read_bytes()
    for length in range(len(content) - 500, len(content), 50):
        path.write_bytes(content[:length])
        [[(found,)]] = ask_perfetto(path, SLICES)
        assert 190 < found <= 200
