"""In a program that ``failing_allocations.c`` is preloaded into: lets its n-th allocation fail, for every n."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

_library = ctypes.PyDLL(None)
_fail, _end = _library.fail_allocations, _library.end_of_failures
_fail.argtypes, _fail.restype = (ctypes.c_long, ctypes.c_long, ctypes.c_size_t), None
_end.argtypes, _end.restype = (), ctypes.c_long

ENDS_TOO_OFTEN = (3, 12) <= sys.version_info < (3, 14)
FINE = int(os.environ["FAULT_FINENESS"])
"""Behind the n-th allocation, the one that is tried next lies n // FINE farther, and at least one."""
COARSE, COARSER = max(4, FINE // 5), max(2, FINE // 8)
"""The same of works that take long, and of those that take longest."""
ALL = 2_000 if FINE > 20 else FINE
"""Of a drain: more than it has allocations, but on the CPythons that try fewer."""


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
    work: Callable[[], object], fail: int = 1, smallest: int = 0, fineness: int = FINE
) -> Iterator[BaseException | None]:
    """Run ``work`` again and again, each time with a later allocation failing, until it needs no more; gives what it raised.

    Of a work's many allocations the later ones are tried farther apart: which ones depends on no clock.
    """
    at = 0
    while True:
        raised, failed = with_failures(work, at, fail, smallest)
        if not failed:
            return
        yield raised
        at += max(1, at // fineness)


def keep_code_of_others() -> None:
    """Keep the code of all functions that are not of this package, for whatever becomes of them.

    CPython 3.12 and 3.13 free a function's code once too often where there is no memory for the function.
    """
    if not ENDS_TOO_OFTEN:
        return
    gc.unfreeze()  # else what a prepared program was given, as `threading`, is not among the objects
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    gc.freeze()
    for code in {function.__code__ for function in functions if "otel_recfn" not in function.__code__.co_filename}:
        _keep(code)


def _keep(code: CodeType) -> None:
    for made in [constant for constant in code.co_consts if isinstance(constant, CodeType)]:
        ctypes.c_ssize_t.from_address(id(made)).value += 1000  # its count of references, which comes first
        _keep(made)
