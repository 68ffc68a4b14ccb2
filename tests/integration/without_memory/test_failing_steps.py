"""What must not fail for want of memory, as the way back from what did: every single allocation of it fails once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CLOSE = """
import os
from pathlib import Path

from failing_allocations import each_failure
from otel_recfn.support.own_file import OwnFile

path = Path(os.path.abspath("file"))


def descriptors():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link) and os.readlink(link) == str(path)]


def opened():
    global file, close
    file = OwnFile(path, os.O_CREAT)
    close = file.close  # now: what looks it up is not what is tested
    assert descriptors()


def close_it():
    close()


opened()
failed = 0
for raised in each_failure(close_it):
    failed += 1
    assert raised is None and not descriptors(), (failed, repr(raised), descriptors())
    opened()
assert failed > 3, failed
"""

INSISTED = """
from failing_allocations import each_failure
from otel_recfn.support.insisting import insist

done = []


def step(into):
    [number + 1000 for number in range(1000, 1010)]
    into.append(True)


def try_it():
    insist(step, done)


try_it()
failed = 0
for raised in each_failure(try_it):
    failed += 1
    assert raised is None and done, (failed, repr(raised))
    done.clear()
assert failed > 3, failed
"""


@pytest.mark.one_python
@pytest.mark.parametrize("program", [CLOSE, INSISTED], ids=["close", "insisted"])
def test_it_is_done_without_memory(run_failing: Callable[..., object], program: str) -> None:
    run_failing(program)
