"""Other people's objects as keys of a mapping, and other people's functions, wrapped and given
back.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log

V = TypeVar("V")


class WeakIdentityMap(Generic[V]):
    """A mapping with weak keys that are compared by identity and not by equality.

    A WeakKeyDictionary can't hold modules with ``__eq__`` and no ``__hash__``; in a dict of ids,
    new objects have dead ones' ids.

    ``get`` and ``set`` from any thread. ``on_death(value)``, called when a key has gone, must take
    no lock: it may come anywhere.
    """

    def __init__(self, on_death: Callable[[V], None] | None = None) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}
        self._on_death = on_death

    def __len__(self) -> int:
        return len(self._entries)

    def living_keys(self) -> list[Any]:
        """The keys that live now."""
        return [
            key for reference, _ in list(self._entries.values()) if (key := reference()) is not None
        ]

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


After: TypeAlias = Callable[..., Any]


class ReplacedFunction:
    """``target``'s function ``name`` and what stands in its place, from ``install`` to ``remove``.

    ``replacement`` gets the function's name and itself, and makes what may be called like it.
    """

    def __init__(
        self, target: Any, name: str, replacement: Callable[[str, Callable[..., Any]], Any]
    ) -> None:
        self.target, self.name = target, name
        self._had_own = name in vars(target)
        self.original: Callable[..., Any] = getattr(target, name)
        self.replacement: Any = functools.update_wrapper(
            replacement(name, self.original), self.original
        )

    def install(self) -> None:
        """Set the stand-in in the function's place."""
        setattr(self.target, self.name, self.replacement)

    def remove(self) -> None:
        """Give the function back, unless somebody wrapped the stand-in, which then stays."""
        if vars(self.target).get(self.name) is not self.replacement:
            return
        if self._had_own:
            setattr(self.target, self.name, self.original)
        else:
            delattr(self.target, self.name)


class WrappedFunction(ReplacedFunction):
    """A wrapper around ``target``'s function ``name``, which passes the function's result through
    ``after``.

    ``after`` gets what the function returned and its arguments, and gives what the caller gets.
    What it raises is logged and not raised into the program, unless a signal handler of the
    program's raised it.
    """

    def __init__(self, target: Any, name: str, after: After) -> None:
        self.active, self._after = True, after
        super().__init__(target, name, lambda _name, _original: functools.partial(self._watched))

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        result = self.original(*args, **kwargs)
        if not self.active:
            return result
        try:
            return self._after(result, *args, **kwargs)
        except Exception as error:  # the program's call goes on
            if raised_by_signal_handler(error):
                raise
            log.debug("watching %s failed", self.name, exc_info=True)
            return result

    def remove(self) -> None:
        """Remove the wrapper; if somebody wrapped the function after us, it only passes calls
        on.
        """
        self.active = False
        super().remove()
