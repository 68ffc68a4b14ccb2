"""A forked child of a program whose calls are traced, where another thread held a lock of ``threading`` at the fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PROGRAM = """
import os, select, signal, threading
from patience import PATIENCE_S

fork_comes, held, forked = threading.Event(), threading.Event(), threading.Event()

def before():
    fork_comes.set()
    assert held.wait(PATIENCE_S)

os.register_at_fork(before=before, after_in_parent=forked.set)  # the last before the fork, the first after it

def hold():
    assert fork_comes.wait(PATIENCE_S)
    with threading._active_limbo_lock:
        held.set()
        assert forked.wait(PATIENCE_S)

from otel_recfn import profile

def work():
    return len("abc")

threading.Thread(target=hold).start()
with profile(python_calls=True) as traced:
    work()
    over, in_child = os.pipe()
    child = os.fork()
    if not child:
        for _ in range(10):
            work()
        os._exit(0)
    os.close(in_child)
    ended = bool(select.select([over], [], [], PATIENCE_S)[0])
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    work()
assert len([event for event in traced.events() if "work" in event.name]) == 2, [event.name for event in traced.events()]
"""


def test_a_child_does_not_wait_for_a_lock_of_its_parents_threads(run_program: Callable[..., Any]) -> None:
    run_program(PROGRAM)
