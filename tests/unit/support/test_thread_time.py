"""The processor time of a thread, read in another one."""

from __future__ import annotations

import threading

import pytest

from otel_recfn.support import thread_time
from otel_recfn.support.thread_time import ThreadTime
from passing_time import let_time_pass
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

SOME_NS = 5_000_000


class Thread:
    """Rests, computes once it is told to, and rests again."""

    def __init__(self) -> None:
        self.time = ThreadTime()
        self.begun, self.go_on, self.computed, self.end = [threading.Event() for _ in range(4)]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        assert self.begun.wait(PATIENCE_S)

    def run(self) -> None:
        self.time.begin()
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        until = self.time.seconds() + SOME_NS / 1e9
        while self.time.seconds() < until:
            pass
        self.computed.set()
        assert self.end.wait(PATIENCE_S)


def test_it_grows_where_the_thread_computes_and_nowhere_else() -> None:
    thread = Thread()
    before = thread.time.seconds()
    let_time_pass(4 * SOME_NS)  # here
    assert thread.time.seconds() - before < SOME_NS / 1e9
    thread.go_on.set()
    assert thread.computed.wait(PATIENCE_S)
    assert thread.time.seconds() - before >= SOME_NS / 1e9
    thread.end.set()
    thread.thread.join()
    assert thread.time.seconds() >= before + SOME_NS / 1e9  # also where the system has forgotten it


def test_nothing_before_it_begins() -> None:
    assert ThreadTime().seconds() == 0.0


def test_where_it_is_not_known_it_passes_as_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_time, "_clock_of_thread", None)
    unknown = ThreadTime()
    unknown.begin()
    before = unknown.seconds()
    let_time_pass(SOME_NS)
    assert unknown.seconds() - before >= 0.9 * SOME_NS / 1e9
