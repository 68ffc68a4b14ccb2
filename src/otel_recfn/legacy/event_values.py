"""Reads the flat list of values in which events travel between processes.

Source: ``LegacyEvent::fromIValue``: twelve values in this order, the handle as a float (so one above 2**53 was rounded), shapes
as lists of lists. What doesn't travel (sequence number, scope, stack, FLOPs, id) has its default.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from otel_recfn.legacy.errors import ProfilerError
from otel_recfn.legacy.event_kind import EventKind

Value = TypeVar("Value")


class ValueIndex(IntEnum):
    """Where each value stands."""

    KIND = 0
    NAME = 1
    THREAD_ID = 2
    HANDLE = 3
    NODE_ID = 4
    CPU_MEM_USAGE = 5
    CPU_NS = 6
    CUDA_RECORDED = 7
    CUDA_MEM_USAGE = 8
    CUDA_DEVICE = 9
    CUDA_US = 10
    SHAPES = 11


NUM_VALUES = len(ValueIndex)


def decode(values: Any) -> dict[str, Any]:
    """The fields of a LegacyEvent from its values; what follows the twelfth is ignored.

    Raises:
        ProfilerError: that isn't a list, is too short, or a value has the wrong type or can't be.
    """
    if not isinstance(values, list):
        raise ProfilerError(f"Expected an event as a list of values, got {type(values).__name__}; pass what to_value_list gave")
    if len(values) < NUM_VALUES:
        raise ProfilerError(f"Expected at least {NUM_VALUES} elements to reconstruct LegacyEvent, got {len(values)}")
    cuda_recorded = _value(values, ValueIndex.CUDA_RECORDED, bool)
    return {
        "kind": _kind(values),
        "name": _value(values, ValueIndex.NAME, str),
        "thread_id": _value(values, ValueIndex.THREAD_ID, int),
        "handle": _handle(values),
        "node_id": _value(values, ValueIndex.NODE_ID, int),
        "cpu_memory_usage": _value(values, ValueIndex.CPU_MEM_USAGE, int),
        "cpu_ns": _recorded(_value(values, ValueIndex.CPU_NS, int)),
        "cuda_memory_usage": _value(values, ValueIndex.CUDA_MEM_USAGE, int),
        "device": _on_device(_value(values, ValueIndex.CUDA_DEVICE, int), cuda_recorded),
        "cuda_us": _on_device(_value(values, ValueIndex.CUDA_US, int), cuda_recorded),
        "shapes": _shapes(values[ValueIndex.SHAPES]),
    }


def _recorded(cpu_ns: int) -> int:
    if cpu_ns <= 0:
        raise ProfilerError(f"Expected CPU_NS above 0, got {cpu_ns}; send events that were recorded")
    return cpu_ns


def _on_device(value: int, cuda_recorded: bool) -> int:
    if cuda_recorded and value < 0:
        raise ProfilerError(
            "Expected CUDA_DEVICE and CUDA_US of an event recorded for CUDA to be at least 0, "
            f"got {value}; set cuda_us before the event is sent"
        )
    return value


def _value(values: list[Any], index: ValueIndex, kind: type[Value]) -> Value:
    value = values[index]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProfilerError(f"Expected {index.name} (element {int(index)}) to be {kind.__name__}, got {value!r}")
    return value


def _kind(values: list[Any]) -> EventKind:
    number = _value(values, ValueIndex.KIND, int)
    try:
        return EventKind(number)
    except ValueError:
        raise ProfilerError(f"unknown event kind {number}; allowed: {', '.join(f'{kind:d}' for kind in EventKind)}") from None


def _handle(values: list[Any]) -> int:
    handle = _value(values, ValueIndex.HANDLE, float)
    if not handle.is_integer() or handle < 0:
        raise ProfilerError(f"Expected HANDLE (element {int(ValueIndex.HANDLE)}) to be a whole number, got {handle!r}")
    return int(handle)


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        raise ProfilerError(f"Expected profiler shapes to be a list, got {value!r}")
    return tuple(_shape(shape) for shape in value)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ProfilerError(f"Expected each profiler shape element to be a list, got {value!r}")
    for size in value:
        if not isinstance(size, int) or isinstance(size, bool):
            raise ProfilerError(f"Expected sizes to be int, got {size!r}")
    return tuple(value)
