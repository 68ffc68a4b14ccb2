"""A mapping with weak keys that are compared by identity and not by equality.

A WeakKeyDictionary can't hold nn.Modules that define ``__eq__`` without ``__hash__``; and a plain dict of ids would take a new
object for a dead one that had the same id.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class WeakIdentityMap(Generic[V]):
    """``get`` and ``set`` from any thread. ``on_death(value)`` is called when a key has gone: it must not take a lock, since a
    garbage collection may call it anywhere."""

    def __init__(self, on_death: Callable[[V], None] | None = None) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}
        self._on_death = on_death

    def __len__(self) -> int:
        return len(self._entries)

    def living(self) -> list[Any]:
        """The keys that live now."""
        return [key for reference, _ in list(self._entries.values()) if (key := reference()) is not None]

    def get(self, key: object) -> V | None:
        """The value of this very object, or None."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: V) -> None:
        """Keep ``value`` for as long as ``key`` lives. The value must not refer to the key."""
        identity = id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            entry = self._entries.get(identity)
            if entry is not None and entry[0] is reference:
                del self._entries[identity]
                if self._on_death is not None:
                    self._on_death(value)

        self._entries[identity] = (weakref.ref(key, forget), value)
