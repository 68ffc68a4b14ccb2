"""PyTorch's memory reports of a thread also between its operators, which is where Python frees most tensors.

PyTorch reports a thread's memory to one profiler alone, and torch.profiler refuses to start where another has that place. So
what keeps it in a thread has to give it up in time:

    torch.profiler ─► _run_on_profiler_start ─► ours steps aside ─► theirs ... ends ... the next operator puts ours back
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any

import wrapt

from otel_recfn.pytorch import details, observer
from otel_recfn.support.forks import ForkSafeLock

WATCHED = ("profiler_start", "legacy_profiler_start")
"""The details of PyTorch that are wrapped, by their names in ``details.PYTHON``."""
IMPORTS_LEGACY = "torch.autograd.profiler_legacy"
"""A module that imports the second one's function by its name, and may not have been imported yet."""


class ProfilerStarts:
    """Tells when a profiler of PyTorch's is about to start: PyTorch has no hook for that, so what these call first is wrapped.

    Args:
        before: called in the thread in which a profiler is about to start. Must not raise.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._wrapped: list[tuple[ModuleType, str, object, object]] = []

    def watch(self) -> bool:
        """Begin to tell. False where this torch lacks one of the functions, which is logged: nothing is told then."""
        if any(details.find(name) is None for name in WATCHED):
            return False
        kineto, legacy = (details.PYTHON[name].place for name in WATCHED)
        for place in (kineto, legacy, (IMPORTS_LEGACY, legacy[1])):
            self._wrap(*place)
        return True

    def unwatch(self) -> None:
        """Tell no more. Our wrapper stays, which is harmless, where others have wrapped it since or imported it by name."""
        for module, name, function, wrapper in self._wrapped:
            if getattr(module, name, None) is wrapper:
                setattr(module, name, function)
        self._wrapped = []

    def _wrap(self, module_name: str, name: str) -> None:
        module = sys.modules.get(module_name)
        function = getattr(module, name, None)
        if module is None or not callable(function):
            return
        wrapper = wrapt.FunctionWrapper(function, self._tell_and_call)
        setattr(module, name, wrapper)
        self._wrapped.append((module, name, function, wrapper))

    def _tell_and_call(self, function: Callable[..., Any], _instance: object, args: Any, keywords: Any) -> Any:
        self._before()
        return function(*args, **keywords)


class _Owners:
    """Who asked for a thread's memory. Some may be left when the thread ends, where another thread stops what this one started.

    That is noted without a lock, because it also happens in a forked child, as the parent's other threads are given up there,
    one of which may have held the lock.
    """

    def __init__(self, left: deque[None], forget_left: Callable[[], None]) -> None:
        self.all: set[Hashable] = set()
        self._left, self._forget_left = left, forget_left

    def __del__(self) -> None:
        if self.all and not sys.is_finalizing():
            self._left.append(None)
            self._forget_left()


class ThreadMemory:
    """The threads whose memory is recorded between operators too.

    Each method is about the calling thread, and does nothing where torch isn't observed.
    """

    def __init__(self) -> None:
        self._starts = ProfilerStarts(observer.step_aside)
        self._of_thread = threading.local()
        self._lock = ForkSafeLock()
        self._threads = 0
        self._left: deque[None] = deque()

    def keep(self, owner: Hashable) -> None:
        """Record the thread's memory until every owner has given it up, or the thread ends."""
        owners = self._owners()
        if owner in owners or observer.loaded_library() is None:
            return
        if owners or self._one_thread_more():
            owners.add(owner)
            observer.keep_memory(True)

    def give_up(self, owner: Hashable) -> None:
        """``owner`` needs it no more. Does nothing where it didn't ask in this thread."""
        owners = self._owners()
        if owner in owners:
            owners.remove(owner)
            if not owners:
                observer.keep_memory(False)
                self._one_thread_less()

    def _owners(self) -> set[Hashable]:
        found: _Owners | None = getattr(self._of_thread, "owners", None)
        if found is None:
            found = self._of_thread.owners = _Owners(self._left, self._forget_left)
        return found.all

    def _forget_left(self) -> None:
        """Count out threads that ended: now if nobody holds the lock, else when the next thread begins or ends."""
        if not self._lock.acquire_if_free():
            return
        try:
            while self._left:
                self._left.popleft()
                self._one_less()
        finally:
            self._lock.release()

    def _one_thread_more(self) -> bool:
        self._forget_left()
        with self._lock:
            if self._threads == 0 and not self._starts.watch():
                return False
            self._threads += 1
            return True

    def _one_thread_less(self) -> None:
        self._forget_left()
        self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._starts.unwatch()


thread_memory = ThreadMemory()
"""The process's, as PyTorch's place for it is."""
