"""Our ranges shown to PyTorch's own observers, such as its profilers, while some run.

The compiled observer makes a RecordFunction of which our own callbacks are left out, for they see the range already. Where that
library isn't loaded PyTorch's ``record_function`` is used: then nothing of ours is on PyTorch's ranges but callbacks in Python,
which are made to look away. It calls two operators, so it is not used where the program looks at the operators that it calls.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any, TypeAlias

from otel_recfn.callbacks import torch_callbacks
from otel_recfn.callbacks.thread_locals import RunningCallback
from otel_recfn.model.events import INT64

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


def begin_for_others(range_: Any, inputs: Sequence[Any]) -> EndElsewhere:
    """Begin a RecordFunction for PyTorch's observers, if some observe the calling thread. Never raises."""
    from otel_recfn.pytorch.observer import loaded_library  # imported late, as programs with callbacks alone need no observer

    global _left_out
    try:
        library = loaded_library()
        if library is None:
            return _begin_by_torch(range_, inputs)
        callbacks = torch_callbacks.loaded()
        if callbacks is not _left_out and callbacks is not None:
            starts = callbacks.starts()
            library.recfn_observer_leave_out((ctypes.c_uint64 * len(starts))(*starts), len(starts))
            _left_out = callbacks
        return _begin_natively(library, range_, inputs)
    except Exception as error:  # the program goes on without it
        _warn_once(str(error))
        return not_shown


@cache
def _warn_once(error: str) -> None:
    log.warning("PyTorch's own profilers don't see some of the program's ranges: %s", error)


# --- by PyTorch's record_function


def _begin_by_torch(range_: Any, inputs: Sequence[Any]) -> EndElsewhere:
    if _program_sees_operators(sys.modules["torch"]):
        return not_shown
    first = inputs[0] if inputs else None
    with RunningCallback():
        of_torch = sys.modules["torch.autograd.profiler"].record_function(
            range_.name(), first if isinstance(first, str) else None
        )
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

NONE, BOOL, INT, DOUBLE, TEXT, TENSOR = range(6)


class RangeInput(ctypes.Structure):
    """The layout of an input, as in C++."""

    _fields_ = (
        ("kind", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
    )


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
        ("inputs", ctypes.POINTER(RangeInput)),
        ("input_count", ctypes.c_uint64),
    )


def _begin_natively(library: ctypes.CDLL, range_: Any, inputs: Sequence[Any]) -> EndElsewhere:
    name = range_.name().encode("utf-8", "replace")
    given = (RangeInput * len(inputs))(*_inputs_of(inputs)) if inputs else None
    numbers = (range_.seq_nr(), range_.forward_thread_id(), range_.debug_handle(), range_.is_async())
    what = RangeForOthers(name, len(name), range_.scope(), *numbers, given, len(inputs))
    address = library.recfn_observer_begin_for_others(ctypes.byref(what))
    return partial(library.recfn_observer_end_for_others, address) if address else not_shown


def _inputs_of(values: Sequence[Any]) -> list[RangeInput]:
    """The inputs for PyTorch, with None for anything but plain values and tensors."""
    torch = sys.modules["torch"]
    # The address comes from ``_cdata``, since asking a tensor may run tensor subclasses and modes of the program's.
    quiet = getattr(torch._C, "DisableTorchFunction", nullcontext)
    with quiet():
        return [_input_of(value, torch.Tensor) for value in values]


def _input_of(value: Any, tensor_type: type) -> RangeInput:
    if isinstance(value, bool):
        return RangeInput(BOOL, value)
    if isinstance(value, int) and value in INT64:
        return RangeInput(INT, value)
    if isinstance(value, float):
        return RangeInput(DOUBLE, 0, value)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        return RangeInput(TEXT, 0, 0, text, len(text))
    if isinstance(value, tensor_type):
        address = getattr(value, "_cdata", 0)  # of PyTorch's tensor object, which the value keeps alive
        return RangeInput(TENSOR, address) if address else RangeInput(NONE)
    return RangeInput(NONE)
