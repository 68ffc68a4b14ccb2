"""What a module is called: ``nn.Module: <Class>_<n>``, and its path within the outermost module that is being called."""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from itertools import count
from typing import Any

from otel_recfn.model.events import SOURCES, EventSource
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.weak_identity import WeakIdentityMap

PREFIX = SOURCES[EventSource.MODULE].call_prefix


class InstanceNames:
    """Numbers the instances of each class name in the order of their first call.

    The number of an instance that is gone is given to the next one: a program that makes ``nn.Softmax()`` anew in every
    forward has one name for it, and not one per step. While two instances live, their names differ.
    """

    def __init__(self, prefix: str | None = PREFIX) -> None:
        self._prefix = prefix
        self._gone: deque[tuple[str, int]] = deque()
        self._names: WeakIdentityMap[tuple[str, int, str]] = WeakIdentityMap(on_death=self._note_gone)
        self._next: dict[str, count[int]] = {}
        self._free: dict[str, list[int]] = {}
        self._lock = ForkSafeLock()

    def name(self, module: object) -> str:
        """The name of this instance, the same as long as it lives."""
        known = self._names.get(module)
        return known[2] if known is not None else self._assign(module)

    def _assign(self, module: object) -> str:
        with self._lock:
            known = self._names.get(module)
            if known is None:
                kind = type(module).__name__
                number = self._number(kind)
                known = (kind, number, f"{self._prefix}{kind}_{number}")
                self._names.set(module, known)
            return known[2]

    def _number(self, kind: str) -> int:
        while self._gone:
            gone, number = self._gone.popleft()
            heapq.heappush(self._free.setdefault(gone, []), number)
        free = self._free.get(kind)
        return heapq.heappop(free) if free else next(self._next.setdefault(kind, count()))

    def _note_gone(self, known: tuple[str, int, str]) -> None:
        self._gone.append(known[:2])


class ModulePaths:
    """Qualified names within an outermost module, as its ``named_modules()`` tells them."""

    def __init__(self) -> None:
        self._trees: WeakIdentityMap[_Tree] = WeakIdentityMap()

    def path(self, outermost: Any, module: object) -> str:
        """``"encoder.layers.0"``; empty for the outermost itself and where it isn't known."""
        if module is outermost:
            return ""
        tree = self._trees.get(outermost)
        if tree is None:
            tree = _Tree()
            self._trees.set(outermost, tree)
        return tree.path(outermost, module)


class _Tree:
    """The paths of one outermost module, read again when a module isn't found in them.

    A module that is never found, because forward makes it on the fly, must not cost a walk through the whole tree each
    time: the walk is repeated at the 1st, 2nd, 4th, 8th... miss in a row.
    """

    __slots__ = ("_misses", "_paths")

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._misses = 0

    def path(self, outermost: Any, module: object) -> str:
        path = self._find(module)
        if path is not None:
            return path
        self._misses += 1
        if self._misses & (self._misses - 1) == 0:
            self._paths = _read(outermost)
            path = self._find(module)
            if path is not None:
                self._misses = 0
        return path or ""

    def _find(self, module: object) -> str | None:
        found = self._paths.get(id(module))
        return found[1] if found is not None and found[0]() is module else None


def _read(outermost: Any) -> dict[int, tuple[weakref.ref[Any], str]]:
    try:
        return {id(module): (weakref.ref(module), path) for path, module in outermost.named_modules()}
    except Exception:  # unhashable modules, a named_modules() of the user's own, a tree that changes meanwhile
        return {}
