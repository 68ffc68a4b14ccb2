"""Our ranges shown to PyTorch's own observers, such as its profilers, while some run.

The compiled observer makes a RecordFunction of which our own callbacks are left out, for they see the range already. Where that
library isn't loaded PyTorch's ``record_function`` is used: then nothing of ours is on PyTorch's ranges but callbacks in Python,
which are made to look away. It calls two operators, so it is not used where the program looks at the operators that it calls.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeAlias

from otel_recfn.callbacks import torch_callbacks
from otel_recfn.callbacks.thread_locals import RunningCallback

log = logging.getLogger("otel_recfn")

EndElsewhere: TypeAlias = Callable[[bool], object]
"""A function that ends the range in PyTorch, once, in any thread. Its argument is whether the range was asynchronous."""


def not_shown(_is_async: bool) -> None:
    """The end of a range that PyTorch was not shown."""


class TorchObservers:
    """Whether observers of PyTorch's run, which is read at the begin of each range."""

    present = False
    """Set by ``registry.show_ranges_to_torch``."""


_left_out: object = None
"""The library of callbacks that knows our RecordFunctions, so that it leaves them out."""


def begin_for_others(range_: Any) -> EndElsewhere:
    """Begin a RecordFunction, without inputs, for PyTorch's observers, if some observe the calling thread. Never raises."""
    from otel_recfn.pytorch.observer import loaded_library  # imported late, as programs with callbacks alone need no observer

    global _left_out
    try:
        library = loaded_library()
        if library is None:
            return _begin_by_torch(range_)
        callbacks = torch_callbacks.loaded()
        if callbacks is not _left_out and callbacks is not None:
            starts = callbacks.starts()
            library.recfn_observer_leave_out((ctypes.c_uint64 * len(starts))(*starts), len(starts))
            _left_out = callbacks
        return _begin_natively(library, range_)
    except Exception as error:  # the program goes on without it
        _warn_once(str(error))
        return not_shown


@cache
def _warn_once(error: str) -> None:
    log.warning("PyTorch's own profilers don't see some of the program's ranges: %s", error)


# --- by PyTorch's record_function


def _begin_by_torch(range_: Any) -> EndElsewhere:
    if _program_sees_operators(sys.modules["torch"]):
        return not_shown
    with RunningCallback():
        of_torch = sys.modules["torch.autograd.profiler"].record_function(range_.name())
        of_torch.__enter__()
    return partial(_end_by_torch, of_torch)


def _end_by_torch(of_torch: Any, _is_async: bool) -> None:
    with suppress(Exception), RunningCallback():  # at the end of the interpreter PyTorch's modules are empty
        of_torch.__exit__(None, None, None)


def _program_sees_operators(torch: Any) -> bool:
    """Whether a graph is traced, or a mode of PyTorch's sees operators."""
    counts = [getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack")]
    return bool(torch.jit.is_tracing()) or any(count() for count in counts if count is not None)


# --- by the compiled observer (native/observer/ranges_for_others.hpp)


class RangeForOthers(ctypes.Structure):
    """The layout of a range, as in C++."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_uint64),
        ("scope", ctypes.c_uint64),
        ("sequence_nr", ctypes.c_int64),
        ("forward_thread_id", ctypes.c_uint64),
        ("debug_handle", ctypes.c_int64),
        ("is_async", ctypes.c_uint64),
    )


def _begin_natively(library: ctypes.CDLL, range_: Any) -> EndElsewhere:
    name = range_.name().encode("utf-8", "replace")
    numbers = (range_.seq_nr(), range_.forward_thread_id(), range_.debug_handle(), range_.is_async())
    what = RangeForOthers(name, len(name), range_.scope(), *numbers)
    address = library.recfn_observer_begin_for_others(ctypes.byref(what))
    return partial(library.recfn_observer_end_for_others, address) if address else not_shown
