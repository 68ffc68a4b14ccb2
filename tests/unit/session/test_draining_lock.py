"""The lock over drains, where threads come between."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from otel_recfn.session.draining import Captures, Draining

LONG_S = 30.0


@pytest.fixture
def draining() -> Draining:
    return Draining(Mock(), Captures(), Mock(), also=Mock())


def begun(thread: threading.Thread, taken: threading.Event) -> None:
    thread.start()
    assert taken.wait(LONG_S)


def test_who_held_the_lock_before_is_forgotten_when_the_next_one_lets_go(draining: Draining) -> None:
    lock, asked = threading.RLock(), threading.Event()

    def acquire(timeout: float) -> bool:
        if threading.current_thread() is other:
            asked.set()
        return lock.acquire(timeout=timeout)

    def wait_for_it() -> None:
        with draining.held(LONG_S):
            pass

    other = threading.Thread(target=wait_for_it)
    draining.lock = Mock(acquire=acquire, release=lock.release)
    with draining.held(LONG_S):
        begun(other, asked)
    other.join()
    assert not draining.is_held_here
