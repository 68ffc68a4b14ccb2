"""Killed, or interrupted by a signal handler that raises: at any moment, and between any two calls of the system."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from forked import fork, killed_in_child
from otel_recfn.model.events import EventFlag
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.files import renaming, whole_file
from small_process import Run
from trace_files import events_in, names_in

pytestmark = pytest.mark.one_python

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "pwrite", "ftruncate", "fchmod", "lseek", "link", "unlink", "rename", "replace")),
    *((os, name) for name in ("copy_file_range",) if hasattr(os, name)),
    (fcntl, "flock"),
    (whole_file, "exchange"),
    (whole_file, "move_to_free_name"),
]
TURNS = 4
BEFORE = json.dumps({"traceEvents": [{"ph": "X", "name": "an earlier run"}] * 500})


ROWS = [{"name": f"op {n % 9}", "shapes": "[[2,3]]"} for n in range(300)]
KILLS = 40
FILE_SYSTEMS = ["exchange", "links", "no links"]


@contextmanager
def file_system(offers: str) -> Iterator[None]:
    """What it has for two names to be swapped."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    with pytest.MonkeyPatch.context() as patch:
        if offers != "exchange":
            patch.setattr(renaming, "_renameat2", None)
        if offers == "no links":
            patch.setattr(os, "link", refuse)
        yield


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


@pytest.mark.parametrize("renames", FILE_SYSTEMS)
def test_a_kill_leaves_the_earlier_trace_or_a_whole_one(path: Path, renames: str, in_small_process: Run) -> None:
    """No moment without a whole file, but for one between two renames where there are neither exchanges nor links."""
    missing = in_small_process(killed_after_each_call, path, renames)
    assert missing <= (TURNS if renames == "no links" else 0)
    with file_system(renames):
        write_all(path)
    assert os.listdir(path.parent) == [path.name]


def killed_after_each_call(path: Path, renames: str) -> int:
    """How often there was no file."""
    missing = 0
    with file_system(renames):
        as_before(path)
        for when in range(1, calls_of(path) + 1):
            as_before(path)
            killed_in_child(lambda: write_until_call(path, when))  # noqa: B023
            if path.exists():
                assert_whole(names_in(path))
            else:
                missing += 1
    return missing


def write_until_call(path: Path, when: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Counting(patch, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
        write_all(path)
    os._exit(1)  # it should not have come so far


def assert_whole(found: list[str]) -> None:
    """All of the earlier trace, or whole batches."""
    if found != ["an earlier run"] * 500:
        assert found == [f"op {turn}" for turn in range(TURNS) for _ in range(3)][: len(found)]
        assert len(found) % 3 == 0


OUTER, INNER = {"event_id": 1, "name": "outer"}, {"event_id": 2, "parent": 1, "name": "inner"}


def steps_with_open_ranges(sink: ChromeTraceSink) -> list[Callable[[], None]]:
    """Two ranges are told while they are open, and end one after the other."""

    def told(*rows: dict[str, Any]) -> Callable[[], None]:
        return partial(sink.write_open, make_batch([{**row, "flags": EventFlag.PARTIAL} for row in rows]))

    def ended(row: dict[str, Any]) -> Callable[[], None]:
        return partial(sink.write, make_batch([row]))

    return [told(OUTER, INNER), ended(INNER), told(OUTER), ended(OUTER), told()]


def assert_each_once(path: Path, *counts: int) -> None:
    """``counts``: of ranges that ended, if it is known."""
    slices = events_in(path, "X")
    assert len({event["args"]["Event id"] for event in slices}) == len(slices)
    assert not counts or len([event for event in slices if "Partial" not in event["args"]]) in counts


def test_a_kill_leaves_each_open_range_once(path: Path, in_small_process: Run) -> None:
    in_small_process(killed_with_open_ranges, path)


def killed_with_open_ranges(path: Path) -> None:
    def write_until(when: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            sink = ChromeTraceSink(path)
            Counting(patch, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
            for step in steps_with_open_ranges(sink):
                step()

    seen = set()
    for when in range(1, 90):
        killed_in_child(partial(write_until, when))
        assert_each_once(path)
        seen.add(tuple(sorted((event["name"], "Partial" in event["args"]) for event in events_in(path, "X"))))
    both, one = (("inner", True), ("outer", True)), (("inner", False), ("outer", True))
    assert seen >= {(), both, one, (("inner", False), ("outer", False))}


@pytest.mark.parametrize("renames", FILE_SYSTEMS)
def test_an_interruption_leaves_each_open_range_once(path: Path, renames: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with file_system(renames):
        for when in range(1, 90):
            sink = ChromeTraceSink(path)
            with pytest.MonkeyPatch.context() as patch:
                Counting(patch, when, interrupt)
                for step in steps_with_open_ranges(sink):
                    with suppress(KeyboardInterrupt):
                        step()
                    assert_each_once(path, sink.counters()["events_written"])
            sink.write_open(make_batch([]))
            assert len(events_in(path, "X")) == sink.counters()["events_written"]
            sink.close(1.0)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_at_any_moment_leaves_a_whole_file(path: Path, exchange: bool, in_small_process: Run) -> None:
    in_small_process(kill_writers, path, "exchange" if exchange else "links")
    sink = ChromeTraceSink(path)
    sink.write(make_batch(ROWS))
    sink.close(1.0)
    assert os.listdir(path.parent) == [path.name]


def kill_writers(path: Path, renames: str) -> None:
    """Each at another moment, some after they said how much they had written."""
    chance = random.Random(3)
    with file_system(renames):
        ChromeTraceSink(path).close(1.0)
        for _ in range(KILLS):
            said = killed_while_it_writes(path, chance.randrange(5), chance.uniform(0.0, 0.01))
            written = len(names_in(path))
            assert written % len(ROWS) == 0
            assert not said or written // len(ROWS) in (said, said + 1)


def killed_while_it_writes(path: Path, least: int, later_s: float) -> int:
    """How many batches it said it had written, when it was killed some time after so many."""

    def write_forever() -> None:
        sink = ChromeTraceSink(path)
        while True:
            sink.write(make_batch(ROWS))
            os.write(saying, b".")

    hearing, saying = os.pipe()
    child = fork(write_forever)
    os.close(saying)
    with open(hearing, "rb", buffering=0) as heard:
        said = sum(len(heard.read(1)) for _ in range(least))
        time.sleep(later_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return said + len(heard.read())


@pytest.mark.parametrize("renames", FILE_SYSTEMS)
def test_an_interruption_costs_one_batch_at_most(path: Path, renames: str) -> None:
    with file_system(renames):
        interrupt_after_each_call(path)


def interrupt_after_each_call(path: Path) -> None:
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
