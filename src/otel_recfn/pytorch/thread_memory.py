"""PyTorch's memory reports of a thread also between its operators, which is where Python frees most tensors.

PyTorch reports a thread's memory to one profiler alone, and torch.profiler refuses to start where another has that place. So
what keeps it in a thread has to give it up in time:

    torch.profiler ─► _run_on_profiler_start ─► ours steps aside ─► theirs ... ends ... the next operator puts ours back
"""

from __future__ import annotations

import sys
import threading
import weakref
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
        if self._wrapped:
            return True
        if any(details.find(name) is None for name in WATCHED):
            return False
        kineto, legacy = (details.PYTHON[name].place for name in WATCHED)
        for module_name, name in (kineto, legacy, (IMPORTS_LEGACY, legacy[1])):
            module = sys.modules.get(module_name)
            function = getattr(module, name, None)
            if module is not None and callable(function):
                wrapper = wrapt.FunctionWrapper(function, self._tell_and_call)
                setattr(module, name, wrapper)
                self._wrapped.append((module, name, function, wrapper))
        return True

    def unwatch(self) -> None:
        """Tell no more. Our wrapper stays, which is harmless, where others have wrapped it since or imported it by name."""
        for module, name, function, wrapper in self._wrapped:
            if getattr(module, name, None) is wrapper:
                setattr(module, name, function)
        self._wrapped = []

    def _tell_and_call(self, function: Callable[..., Any], _instance: object, args: Any, keywords: Any) -> Any:
        self._before()
        return function(*args, **keywords)


class _Owners:
    """Who asked for a thread's memory."""

    def __init__(self, when_thread_ends: Callable[[weakref.ref[_Owners]], None]) -> None:
        self.all: set[Hashable] = set()
        self.thread = weakref.ref(self, when_thread_ends)
        """Stands for the thread, which keeps this object."""


class ThreadMemory:
    """The threads whose memory is recorded between operators too.

    Each method is about the calling thread, and does nothing where torch isn't observed.
    """

    def __init__(self) -> None:
        self._starts = ProfilerStarts(observer.step_aside)
        self._of_thread = threading.local()
        self._lock = ForkSafeLock()
        self._threads: set[weakref.ref[_Owners]] = set()
        """Those that have owners."""

    def keep(self, owner: Hashable) -> None:
        """Record the thread's memory until every owner has given it up, or the thread ends."""
        owners = self._owners()
        if owner in owners.all or observer.loaded_library() is None:
            return
        with self._lock:
            if not self._starts.watch():
                return
            self._threads.add(owners.thread)
        owners.all.add(owner)
        observer.keep_memory(True)

    def give_up(self, owner: Hashable) -> None:
        """``owner`` needs it no more. Does nothing where it didn't ask in this thread."""
        owners = self._owners()
        owners.all.discard(owner)
        if not owners.all and owners.thread in self._threads:
            observer.keep_memory(False)
            self._forget(owners.thread)

    def _owners(self) -> _Owners:
        if not hasattr(self._of_thread, "owners"):
            self._of_thread.owners = _Owners(self._forget)
        owners: _Owners = self._of_thread.owners
        return owners

    def _forget(self, thread: weakref.ref[_Owners]) -> None:
        """The thread has given its memory up, or ended before its owners did.

        It doesn't wait for the lock, because it is also called in a forked child, as the parent's other threads are given up
        there, one of which may have held it. Where somebody has it, the wrappers stay until the next thread is forgotten.
        """
        self._threads.discard(thread)
        if self._lock.acquire_if_free():
            try:
                if not self._threads:
                    self._starts.unwatch()
            finally:
                self._lock.release()


thread_memory = ThreadMemory()
"""The process's, as PyTorch's place for it is."""
