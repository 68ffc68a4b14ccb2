"""Locks are held in the block alone, and only if they can be had in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.support.locks import acquire_into, acquired


class Holder:
    """A thread that holds a lock until it is told to release it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._holds = threading.Event()
        self._may_release = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(lock,))
        self._thread.start()
        self._holds.wait()

    def _hold(self, lock: threading.Lock) -> None:
        with lock:
            self._holds.set()
            self._may_release.wait()

    def release(self) -> None:
        self._may_release.set()
        self._thread.join()


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()


@pytest.fixture
def holder(lock: threading.Lock) -> Iterator[Holder]:
    made = Holder(lock)
    yield made
    made.release()


@pytest.mark.parametrize("timeout_s", [-1, 0, 0.0, PATIENCE_S])
def test_a_free_lock_is_held_in_the_block(lock: threading.Lock, timeout_s: float) -> None:
    with acquired(lock, timeout_s) as is_held:
        assert is_held
        assert lock.locked()
    assert not lock.locked()


@pytest.mark.parametrize("timeout_s", [0, 0.0, 1e-3])
def test_a_lock_that_another_thread_holds_is_left_to_it(
    lock: threading.Lock, holder: Holder, timeout_s: float
) -> None:
    with acquired(lock, timeout_s) as is_held:
        assert not is_held
    assert lock.locked()


def test_it_is_waited_for_without_a_limit(lock: threading.Lock, holder: Holder) -> None:
    threading.Thread(target=holder.release).start()
    with acquired(lock, -1) as is_held:
        assert is_held


def test_what_the_block_raises_releases_it(lock: threading.Lock) -> None:
    with pytest.raises(KeyError), acquired(lock, -1):
        raise KeyError
    assert not lock.locked()


def test_those_that_could_be_had_are_noted(lock: threading.Lock, holder: Holder) -> None:
    free = threading.Lock()
    held = list[threading.Lock]()
    for each in (lock, free):
        acquire_into(held, each, 0.0)
    assert held == [free]
    free.release()
