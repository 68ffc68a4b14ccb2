"""The list of values as which an event is sent to another process: PyTorch's first, then ours, then
the stack as a list, and ``extra_args`` as a list of lists of name and value.

Source: ``LegacyEvent::toIValue`` and ``fromIValue`` of PyTorch. A list of PyTorch's values alone is
that of a remote event.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.kinds import EventKind

VALUES: tuple[tuple[str, type], ...] = (
    ("kind", int),
    ("name", str),
    ("thread_id", int),
    ("handle", float),
    ("node_id", int),
    ("cpu_memory_usage", int),
    ("cpu_ns", int),
    ("cuda_recorded", bool),
    ("cuda_memory_usage", int),
    ("device", int),
    ("cuda_us", int),
    ("shapes", list),
)
"""The values that PyTorch sends, in order, with their types. Shapes are lists of lists.

A handle is a float, which is exact for all but those above 2**53 that a program sets itself
(``RecordFunction.set_handle``).
"""
OTHER_VALUES: tuple[tuple[str, type], ...] = (
    ("sequence_nr", int),
    ("fwd_thread_id", int),
    ("scope", int),
    ("is_async", bool),
    ("is_remote", bool),
    ("flops", int),
    ("event_id", int),
    ("correlation_id", int),
)
"""The values that we send after them."""


def have_types(values: list[Any], kinds: Iterable[type]) -> bool:
    """Whether values have exactly these types, in order."""
    return [type(value) for value in values] == [*kinds]


def decoded(values: Any) -> dict[str, Any]:
    """The fields of a LegacyEvent from PyTorch's values."""
    kinds = [kind for _, kind in VALUES]
    if not isinstance(values, list) or not have_types(values[: len(VALUES)], kinds):
        expected = ", ".join([f"{name} ({kind.__name__})" for name, kind in VALUES])
        raise ProfilerError(
            f"Expected a list of {expected}, got {values!r}; pass what to_value_list gave"
        )
    fields: dict[str, Any] = dict(zip((name for name, _ in VALUES), values, strict=False))
    recorded = fields.pop("cuda_recorded")
    if fields["cpu_ns"] <= 0 or (recorded and min(fields["device"], fields["cuda_us"]) < 0):
        raise ProfilerError(
            f"Expected the times of a recorded event, got {values!r}; set cuda_us before it is sent"
        )
    try:
        shapes = tuple([tuple(map(index, shape)) for shape in fields["shapes"]])
        return {
            **fields,
            "kind": EventKind(fields["kind"]),
            "handle": int(fields["handle"]),
            "shapes": shapes,
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise ProfilerError(
            f"Expected a kind, a handle and lists of sizes: {error}; pass what to_value_list gave"
        ) from None


def decoded_others(values: list[Any]) -> dict[str, Any]:
    """The fields of a LegacyEvent from the values after PyTorch's; if these aren't ours, those of a
    remote event.
    """
    kinds = [kind for _, kind in OTHER_VALUES]
    if not have_types(values[: len(kinds) + 2], [*kinds, list, list]):
        return {"is_remote": True}
    fields: dict[str, Any] = dict(zip((name for name, _ in OTHER_VALUES), values, strict=False))
    stack, arguments = values[len(kinds) : len(kinds) + 2]
    try:
        extra_args = {str(name): value for name, value in arguments}
    except (TypeError, ValueError) as error:
        raise ProfilerError(
            f"Expected lists of a name and a value: {error}; pass what to_value_list gave"
        ) from None
    return {**fields, "stack": tuple(map(str, stack)), "_extra_args": extra_args or None}
