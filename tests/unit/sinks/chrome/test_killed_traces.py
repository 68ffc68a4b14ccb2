"""Killed between any two calls of the system, a full disk, no free descriptor: the trace goes on
behind a counted gap.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.batches import make_batch
from helpers.forked_work import killed_in_child
from helpers.perfetto_ui import ask_perfetto
from helpers.small_process import Run
from helpers.trace_files import events_in, names_in, names_in_cut
from otel_recfn import _native
from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python
CALLS: list[tuple[Any, str]] = [
    *(
        (os, name)
        for name in ("open", "pwrite", "ftruncate", "fchmod", "lseek", "link", "unlink", "replace")
    ),
    (fcntl, "flock"),
]


TURNS = 4
BEFORE = '[\n{"ph": "X", "name": "an earlier run"}\n]\n'


class Counting:
    """Does something after the n-th call of the system."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, when: int, then: Callable[[], None]
    ) -> None:
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


def test_a_kill_leaves_the_earlier_trace_or_the_batches_that_were_written(
    path: Path, in_small_process: Run
) -> None:
    in_small_process(killed_after_each_call, path)


def killed_after_each_call(path: Path) -> None:
    calls = calls_of(path)
    seen = set()
    for when in range(1, calls + 1):
        path.write_bytes(
            gzip.compress(BEFORE.encode()) if path.suffix == ".gz" else BEFORE.encode()
        )
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


SLICES = "select count(*) from slice"
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def test_perfetto_opens_a_trace_whose_process_was_killed(path: Path) -> None:
    killed_in_child(partial(write_twice, path))
    assert ask_perfetto(path, SLICES) == [[(len(events_in(path, "X")),)]]


def test_perfetto_opens_a_trace_that_was_killed_amid_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object's last fields are there, its beginning isn't yet."""

    def work() -> None:
        writer = write_twice(path)
        write = os.pwrite
        monkeypatch.setattr(
            os,
            "pwrite",
            lambda *given: write(*given) if given[2] else os.kill(os.getpid(), signal.SIGKILL),
        )
        writer.close()

    killed_in_child(work)
    assert names_in_cut(path) == ["op"] * 200
    assert ask_perfetto(path, SLICES, COMPLAINTS) == [[(200,)], []]


def write_twice(path: Path) -> TraceWriter:
    writer = TraceWriter(path)
    now_ns = time.time_ns()
    for turn in range(2):
        starts = range(now_ns + turn * 1000, now_ns + turn * 1000 + 100)
        writer.write(
            make_batch([{"name": "op", "start_ns": start, "end_ns": start + 1} for start in starts])
        )
    return writer


def test_perfetto_opens_a_text_that_is_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    killed_in_child(partial(write_twice, path))
    content = path.read_bytes()
    for length in range(len(content) - 500, len(content), 50):
        path.write_bytes(content[:length])
        [[(found,)]] = ask_perfetto(path, SLICES)
        assert 190 < found <= 200


def test_a_full_disk_costs_the_batches_that_meet_it(
    writer: TraceWriter, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    [refusal] = [record for record in caplog.records if "File too large" in record.getMessage()]
    assert "counted" in refusal.getMessage()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space"), OSError(errno.EDQUOT, "quota")]
)
def test_at_any_moment(path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Whatever call fails: each batch is in the file whole or counted, and no arrow begins
    nowhere.
    """
    chance = random.Random(11)
    failing = 0.0

    def sometimes(call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **named: Any) -> Any:
            if chance.random() < failing:
                raise error
            return call(*arguments, **named)

        return replacement

    for module, name in (
        (os, "pwrite"),
        (os, "ftruncate"),
        (_native, "encode_chrome_events"),
        (_native, "encode_chrome_flows"),
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
        {
            "name": f"forward {turn}",
            "sequence_nr": turn * 20 + n,
            "start_ns": start + n * 100,
            "end_ns": start + n * 100 + 50,
        }
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
