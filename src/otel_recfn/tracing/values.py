"""Which value of a graph an object of the program is, while the object lives."""

from __future__ import annotations

from typing import Any

from otel_recfn.support.weak_identity import WeakIdentityMap
from otel_recfn.tracing.graph import Value


class KnownValues:
    """Objects by identity. Those that can't be referred to weakly are kept until the trace ends."""

    def __init__(self) -> None:
        self._weak: WeakIdentityMap[Value] = WeakIdentityMap()
        self._kept: dict[int, tuple[Any, Value]] = {}

    def get(self, thing: Any) -> Value | None:
        """The object's value, or None."""
        kept = self._kept.get(id(thing))
        return kept[1] if kept is not None else self._weak.get(thing)

    def set(self, thing: Any, value: Value) -> None:
        """The object is this value from now on: what wrote to it last."""
        try:
            self._weak.set(thing, value)
        except TypeError:  # numpy's scalars, for instance
            self._kept[id(thing)] = (thing, value)

    def living(self) -> list[Any]:
        """The objects that live now."""
        return [*self._weak.living(), *(thing for thing, _ in self._kept.values())]


def shares_data(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory, as far as they say: PyTorch's storages, or numpy's bases."""
    data = _data(one)
    return data is not None and data == _data(other)


def _data(tensor: Any) -> tuple[str, int] | None:
    try:
        if hasattr(tensor, "untyped_storage"):
            address = tensor.untyped_storage().data_ptr()
            return ("storage", address) if address else None  # tensors without memory have no address
        if not hasattr(tensor, "__array_interface__"):
            return None
        while getattr(tensor, "base", None) is not None:
            tensor = tensor.base
        return "array", id(tensor)
    except Exception:  # a tensor without storage
        return None
