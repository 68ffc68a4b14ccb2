"""A fork finds the threads of ours at rest, and waits for that no longer than the program can
bear.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.example_counts import SOAK
from helpers.small_process import Run
from helpers.timeouts import PATIENCE_S
from otel_recfn.support import forks
from otel_recfn.support.forks import OwnThread, at_work, resting

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
FORKS = 40 * SOAK
LONG_S = PATIENCE_S / 3
"""A fork may wait so long here where it should not wait at all."""


def child_exit_code(child: Callable[[], bool]) -> int:
    """Of a fork whose child finds ``child`` true: 0."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Worker:
    """A thread of ours that holds a lock again and again, and never in a pause."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rounds = 0
        self.began = threading.Event()
        self.over = threading.Event()
        self.thread = OwnThread(self._run, "worker")

    def _run(self) -> None:
        while not self.over.is_set():
            with at_work():
                with self.lock:
                    time.sleep(0.001)
                with resting():
                    self.rounds += 1
                    self.began.set()
                with self.lock:
                    time.sleep(0.001)

    @contextmanager
    def running(self) -> Iterator[Worker]:
        self.thread.start()
        assert self.began.wait(PATIENCE_S)
        yield self
        self.over.set()
        self.thread.wait_for_end(PATIENCE_S)
        assert not self.thread.is_alive()


def test_no_child_inherits_a_lock_that_a_thread_of_ours_held(in_small_process: Run) -> None:
    in_small_process(forks_beside_two_workers)


def forks_beside_two_workers() -> None:
    with Worker().running() as one, Worker().running() as other:
        codes = [
            child_exit_code(lambda: not one.lock.locked() and not other.lock.locked())
            for _ in range(FORKS)
        ]
        rounds = one.rounds, other.rounds
        assert child_exit_code(lambda: True) == 0
    assert codes == [0] * FORKS
    assert min(rounds) > 0


def test_a_fork_waits_once_for_work_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        with at_work():
            working.set()
            over.wait(PATIENCE_S)

    working = threading.Event()
    over = threading.Event()
    thread = OwnThread(hang, "hanging")
    thread.start()
    assert working.wait(PATIENCE_S)
    waited = []
    for seconds in (0.5, LONG_S, LONG_S):
        monkeypatch.setattr(forks, "FORK_WAIT_SECONDS", seconds)
        began = time.monotonic()
        assert child_exit_code(lambda: True) == 0
        waited.append(time.monotonic() - began)
    over.set()
    thread.wait_for_end(PATIENCE_S)
    assert waited[0] >= 0.5
    assert max(waited) < LONG_S


def test_a_thread_that_never_started_is_not_waited_for() -> None:
    thread = OwnThread(lambda: None, "never started")
    thread.wait_for_end(PATIENCE_S)
    assert not thread.is_alive()


def test_a_thread_of_ours_may_log_a_traceback_without_importing(tmp_path: Path) -> None:
    program = """
import logging, sys, threading
from otel_recfn.support.forks import OwnThread

imported = []

def watch(event, arguments):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        imported.append(arguments[0])

def fail():
    try:
        {}["no such key"] + 1
    except KeyError:
        logging.exception("failed")

logging.basicConfig(stream=sys.stdout)
thread = OwnThread(fail, "failing")
sys.addaudithook(watch)
thread.start()
thread.wait_for_end(300)
print(imported)
"""
    script = tmp_path / "program.py"  # a traceback shows the lines of a file
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert "no such key" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
