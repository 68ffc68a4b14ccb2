"""Keys by identity, held weakly; locks that a forked child finds free."""

from __future__ import annotations

import os
import threading

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock


class Equal:
    """Equal to everything, and unhashable."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        return True


def test_equal_objects_have_values_of_their_own() -> None:
    values: WeakIdentityMap[int] = WeakIdentityMap()
    first = Equal()
    second = Equal()
    values.set(first, 1)
    assert (values.get(first), values.get(second)) == (1, None)
    values.set(second, 2)
    values.set(first, 3)
    assert (values.get(first), values.get(second), len(values), len(values.living_keys())) == (
        3,
        2,
        2,
        2,
    )


def test_a_key_that_died_is_told_once_and_forgotten() -> None:
    died: list[int] = []
    values: WeakIdentityMap[int] = WeakIdentityMap(on_death=died.append)
    for number in range(100):
        key = Equal()
        # An id that was used before is not mistaken for the earlier object.
        assert values.get(key) is None
        values.set(key, number)
        del key
    assert died == list(range(100))
    assert len(values) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_lock_that_this_thread_holds_at_the_fork_is_given_back_in_the_child() -> None:
    lock = ForkSafeLock()

    def take_it() -> None:
        with lock:
            pass

    with lock:
        child = os.fork()
    if child == 0:
        taking = threading.Thread(target=take_it, daemon=True)
        taking.start()
        taking.join(PATIENCE_S)
        os._exit(7 if not taking.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_lock_that_a_thread_holds_at_the_fork_is_free_in_the_child() -> None:
    lock = ForkSafeLock()
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE_S)
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(7)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
