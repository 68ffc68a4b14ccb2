"""In a program that ``failing_allocations.c`` is preloaded into: lets its n-th allocation fail, for
every n.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

SMALLEST = 512
"""The bytes from which on allocations fail: CPython itself doesn't bear it if smaller ones do."""
ENOUGH = 5
"""The times without a failure after which all allocations of the work have failed."""

_library = ctypes.PyDLL(None)
_library.fail_nth.argtypes = (ctypes.c_long, ctypes.c_size_t, ctypes.c_int)
_library.fail_nth.restype = None
_library.stop_failing.argtypes, _library.stop_failing.restype = (), ctypes.c_ulong


def each_failure(
    work: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    elsewhere: bool = False,
    smallest: int = SMALLEST,
) -> Iterator[BaseException | None]:
    """Do the work again and again, each time with a later allocation failing, until several times
    none has failed: the work allocates more at one time than at another, as memory is used again.

    Yields what the work raised, after each failure.

    Args:
        work: what allocates.
        before: what is done each time before, with enough memory.
        elsewhere: allocations of all other threads fail, in place of this one's.
        smallest: the bytes from which on allocations count.
    """
    n = without = 0
    while without < ENOUGH:
        n += 1
        raised: BaseException | None = None
        before()
        _library.fail_nth(n, smallest, not elsewhere)
        try:
            work()
        except Exception as error:
            raised = error
        if _library.stop_failing():
            without = 0
            yield raised
        else:
            assert raised is None, repr(raised)
            without += 1
