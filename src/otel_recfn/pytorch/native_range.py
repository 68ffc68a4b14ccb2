"""A range of the program's as a RecordFunction that the compiled observer makes (native/observer/ranges_for_others.hpp)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from otel_recfn.runtime.other_observers import RangeToTell

NONE, BOOL, INT, DOUBLE, TEXT, TENSOR = range(6)
INT64 = range(-(1 << 63), 1 << 63)


class Input(ctypes.Structure):
    """RangeInput."""

    _fields_ = (
        ("kind", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
    )


class Range(ctypes.Structure):
    """RangeForOthers."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_uint64),
        ("scope", ctypes.c_uint64),
        ("sequence_nr", ctypes.c_int64),
        ("forward_thread_id", ctypes.c_uint64),
        ("debug_handle", ctypes.c_int64),
        ("is_async", ctypes.c_uint64),
        ("inputs", ctypes.POINTER(Input)),
        ("input_count", ctypes.c_uint64),
    )


def declare(library: ctypes.CDLL) -> None:
    """Say what its functions take and return."""
    library.recfn_observer_begin_for_others.argtypes = [ctypes.POINTER(Range)]
    library.recfn_observer_begin_for_others.restype = ctypes.c_void_p
    library.recfn_observer_end_for_others.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.recfn_observer_end_for_others.restype = None
    library.recfn_observer_leave_out.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64]


class NativeRange:
    """One that has begun."""

    __slots__ = ("_address", "_library")

    def __init__(self, library: ctypes.CDLL, address: int) -> None:
        self._library, self._address = library, address

    def end(self, is_async: bool) -> None:
        """See RangeElsewhere."""
        address, self._address = self._address, 0
        if address:
            self._library.recfn_observer_end_for_others(address, is_async)


def begin(library: ctypes.CDLL, told: RangeToTell) -> NativeRange | None:
    """Begin it; None where nobody but us observes the calling thread."""
    name = told.name.encode("utf-8", "replace")
    inputs = (Input * len(told.inputs))(*inputs_of(told.inputs)) if told.inputs else None
    numbers = (told.sequence_nr, told.forward_thread_id, told.debug_handle, told.is_async)
    what = Range(name, len(name), told.scope, *numbers, inputs, len(told.inputs))
    address = library.recfn_observer_begin_for_others(ctypes.byref(what))
    return NativeRange(library, address) if address else None


def leave_out(library: ctypes.CDLL, starts: Sequence[int]) -> None:
    """The callbacks that start with these functions are ours too."""
    library.recfn_observer_leave_out((ctypes.c_uint64 * len(starts))(*starts), len(starts))


def inputs_of(values: Sequence[Any]) -> list[Input]:
    """The values; those that are no plain values or tensors as None."""
    torch = sys.modules["torch"]
    # A tensor's address must not be asked of the program's tensor subclasses and modes.
    quiet = getattr(torch._C, "DisableTorchFunction", nullcontext)
    with quiet():
        return [_input_of(value, torch.Tensor) for value in values]


def _input_of(value: Any, tensor_type: type) -> Input:
    if isinstance(value, bool):
        return Input(BOOL, value)
    if isinstance(value, int) and value in INT64:
        return Input(INT, value)
    if isinstance(value, float):
        return Input(DOUBLE, 0, value)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        return Input(TEXT, 0, 0, text, len(text))
    if isinstance(value, tensor_type):
        address = getattr(value, "_cdata", 0)  # of PyTorch's implementation, which the value keeps
        return Input(TENSOR, address) if address else Input(NONE)
    return Input(NONE)
