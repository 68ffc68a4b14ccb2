"""The lock over drains, where threads and signal handlers come between."""

from __future__ import annotations

import dis
import signal
import sys
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from otel_recfn.session.captures import Captures
from otel_recfn.session.draining import Draining
from otel_recfn.session.forks import HeldLocks
from otel_recfn.support.timed_lock import take_in_time
from patience import PATIENCE_S, wait_until

LONG_S = 30.0


class Interrupted(Exception):
    """By the signal handler."""


@pytest.fixture
def draining() -> Draining:
    return Draining(Mock(), Captures(), Mock())


@pytest.fixture
def handler_raises() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Interrupted

    before, interval = signal.signal(signal.SIGUSR1, handler), sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    signal.signal(signal.SIGUSR1, before)


CALLS = [each.offset for each in dis.get_instructions(take_in_time) if each.opname.startswith(("CALL", "PRECALL"))]
WAITING = CALLS[-2 if "PRECALL" in dis.opmap else -1]  # 3.11 has two instructions for a call
"""From the place of its last call on it waits for the lock: before, it may only have been made to give the GIL away."""


def main_thread_waits() -> bool:
    """For the lock: whoever sees it there has the GIL, which it let go of for that."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code is take_in_time.__code__ and frame.f_lasti >= WAITING


def let_go_and_signal(lock: threading.RLock, taken: threading.Event) -> None:
    """Let the main thread have the lock, and send it a signal before it can run Python code."""
    with lock:
        taken.set()
        wait_until(main_thread_waits)
        sys.setswitchinterval(LONG_S)
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def is_free(lock: threading.RLock) -> bool:
    found: list[bool] = []

    def look() -> None:
        if lock.acquire(timeout=PATIENCE_S):
            found.append(True)
            lock.release()

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    return bool(found)


def begun(thread: threading.Thread, taken: threading.Event) -> None:
    thread.start()
    assert taken.wait(LONG_S)


def test_a_signal_handler_that_raises_as_the_lock_is_taken_leaves_it_free(draining: Draining, handler_raises: None) -> None:
    taken = threading.Event()
    other = threading.Thread(target=let_go_and_signal, args=(draining.lock, taken))
    begun(other, taken)
    with pytest.raises(Interrupted), draining.held(LONG_S):
        pass
    other.join()
    assert is_free(draining.lock)
    assert not draining.is_held_here


def test_nor_does_one_before_a_fork(handler_raises: None) -> None:
    lock, taken, locks = threading.RLock(), threading.Event(), HeldLocks()
    other = threading.Thread(target=let_go_and_signal, args=(lock, taken))
    begun(other, taken)
    with pytest.raises(Interrupted):
        locks.take([lock], time.monotonic() + LONG_S)
    other.join()
    locks.give_back()
    assert is_free(lock)


def test_who_held_the_lock_before_is_forgotten_when_the_next_one_lets_go(draining: Draining) -> None:
    lock, asked = threading.RLock(), threading.Event()

    def acquire(blocking: bool, timeout_s: float) -> bool:
        if threading.current_thread() is other:
            asked.set()
        return lock.acquire(blocking, timeout_s)

    def wait_for_it() -> None:
        with draining.held(LONG_S):
            pass

    other = threading.Thread(target=wait_for_it)
    draining.lock = Mock(acquire=acquire, release=lock.release)
    with draining.held(LONG_S):
        begun(other, asked)
    other.join()
    assert not draining.is_held_here
