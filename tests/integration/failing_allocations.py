"""In a program that ``failing_allocations.c`` is preloaded into: lets its n-th allocation fail, for every n."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator

_library = ctypes.PyDLL(None)
_fail, _end = _library.fail_allocations, _library.end_of_failures
_fail.argtypes, _fail.restype = (ctypes.c_long, ctypes.c_long, ctypes.c_size_t), None
_end.argtypes, _end.restype = (), ctypes.c_long

SECONDS = float(os.environ.get("FAULT_SECONDS", "20"))
EACH = 50
"""So many are tried one by one, however slow the machine is."""


def fail_next_allocations(succeed: int, fail: int = 1) -> None:
    """After the next ``succeed`` allocations of the calling thread, let so many fail, whatever it does meanwhile."""
    while True:
        try:
            _end()  # what is left of an earlier call
            return _fail(succeed, fail, 0)
        except (MemoryError, ctypes.ArgumentError):
            pass


def with_failures(
    work: Callable[[], object], succeed: int = 0, fail: int = 1, smallest: int = 0
) -> tuple[BaseException | None, bool]:
    """Run ``work`` while allocations fail, of ``smallest`` bytes or more. Returns what it raised, and whether any did."""
    raised: BaseException | None = None
    _fail(succeed, fail, smallest)
    try:
        work()
    except BaseException as error:
        raised = error
    failed = _end()
    return raised, failed > 0


def each_failure(
    work: Callable[[], object], fail: int = 1, smallest: int = 0, one_by_one: int = EACH
) -> Iterator[BaseException | None]:
    """Run ``work`` again and again, each time with a later allocation failing, until it needs no more; gives what it raised.

    Beyond the first ``one_by_one``, a work with very many allocations is tried at fewer of them, so that it ends in time.
    """
    began, at, step = time.monotonic(), 0, 1
    while True:
        raised, failed = with_failures(work, at, fail, smallest)
        if not failed:
            return
        yield raised
        at += step
        if at > one_by_one:
            step = max(step, int(at * (time.monotonic() - began) / SECONDS / 4))
