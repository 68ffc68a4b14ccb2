"""In a program that ``failing_allocations.c`` is preloaded into: lets its n-th allocation fail, for every n."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

_library = ctypes.PyDLL(None)
_fail, _end = _library.fail_allocations, _library.end_of_failures
_fail.argtypes, _fail.restype = (ctypes.c_long, ctypes.c_long, ctypes.c_size_t), None
_end.argtypes, _end.restype = (), ctypes.c_long

SECONDS = float(os.environ.get("FAULT_SECONDS", "8"))
ENDS_TOO_OFTEN = (3, 12) <= sys.version_info < (3, 14)
IN_FULL = SECONDS >= 1
"""On one CPython; `scripts/test_without_torch.sh` gives the others a part of a second."""
EACH = 50 if IN_FULL else 25
"""So many are tried one by one, however slow the machine is."""
ALL = 2_000 if IN_FULL else EACH
"""Of a drain: more than it has, or only so many."""


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


def keep_code_of_others() -> None:
    """Keep the code of all functions that are not of this package, for whatever becomes of them.

    CPython 3.12 and 3.13 free a function's code once too often where there is no memory for the function.
    """
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)] if ENDS_TOO_OFTEN else []
    for code in {function.__code__ for function in functions if "otel_recfn" not in function.__code__.co_filename}:
        _keep(code)


def _keep(code: CodeType) -> None:
    for made in [constant for constant in code.co_consts if isinstance(constant, CodeType)]:
        ctypes.c_ssize_t.from_address(id(made)).value += 1000  # its count of references, which comes first
        _keep(made)
