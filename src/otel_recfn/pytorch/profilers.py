"""PyTorch's own observers: when torch.profiler, its legacy profiler and ExecutionTraceObserver run,
and what memory they need.

PyTorch has no hook for their starts and ends, so the functions that start and end them are wrapped,
once torch is imported.

It reports a thread's memory to one profiler alone, and torch.profiler refuses to start where
another has that place. So what keeps the place for us, to have reports also between operators,
where Python frees most tensors, gives it up in time:

    torch.profiler ─► _run_on_profiler_start ─► ours steps aside ─► theirs ... ends ...
                   ─► the next operator puts ours back
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import call_at_torch_import
from otel_recfn.support.forks import ForkSafeLock

OBSERVERS = (
    ("profiler_enable", "profiler_disable"),
    ("legacy_profiler_start", "legacy_profiler_stop"),
    ("execution_trace_enable", "execution_trace_disable"),
)
"""The functions that start and end PyTorch's observers, by their names in ``details.PYTHON``."""
NEED_MEMORY = ("profiler_start", "legacy_profiler_start")
"""The function that is called before a thread's memory is reported to another profiler."""
IMPORTED_BY_NAME = (
    "torch.autograd",
    "torch.autograd.profiler",
    "torch.autograd.profiler_legacy",
    "torch.profiler.profiler",
)
"""The modules that may have these functions under the same names."""

_lock = ForkSafeLock()
_watching = False
_running = 0
_listeners: list[Callable[[bool], None]] = []


def add_running_listener(listener: Callable[[bool], None]) -> None:
    """Call ``listener`` when observers of PyTorch's begin or cease to run in the process, and
    now if some run.
    """
    with _lock:
        _listeners.append(listener)
        if _running:
            listener(True)
    _watch()


def _watch() -> None:
    global _watching
    with _lock:
        watching, _watching = _watching, True
    if not watching:
        call_at_torch_import(_wrap_all)


def _wrap_all() -> None:
    starts = {
        start: 1
        for start, end in OBSERVERS
        if details.find(start) is not None and details.find(end) is not None
    }
    changes = {**starts, **{end: -1 for start, end in OBSERVERS if start in starts}}
    for name in {**changes, **dict.fromkeys(NEED_MEMORY)}:
        if details.find(name) is not None:
            _wrap(name, changes.get(name, 0))
    if details.find("profiler_runs"):
        _change(1)


def _wrap(name: str, change: int) -> None:
    original = details.find(name)

    @wraps(original)
    def watched(*args: Any, **keywords: Any) -> Any:
        if name in NEED_MEMORY:
            # Imported late, as most programs need none.
            from otel_recfn.pytorch.observer import step_aside

            step_aside()
        result = original(*args, **keywords)
        _change(change)
        return result

    _, attribute = details.owner_and_name(name)
    for module in map(sys.modules.get, IMPORTED_BY_NAME):
        if getattr(module, attribute, None) is original:
            setattr(module, attribute, watched)


def _change(change: int) -> None:
    """Count an observer that has started, or ended; one that ends may have started before we
    looked.
    """
    global _running
    with _lock:
        was = _running
        _running = max(0, _running + change)
        if bool(was) != bool(_running):
            for listener in _listeners:
                listener(_running > 0)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.owners: set[Hashable] = set()


_per_thread = _PerThread()


def keep_memory(owner: Hashable) -> None:
    """Have the calling thread's memory recorded between operators too, until every owner has
    released it, or the thread ends.

    Nothing happens where torch isn't observed, or its profilers can't be made room for.
    """
    from otel_recfn.pytorch import observer

    owners = _per_thread.owners
    if (
        owner in owners
        or observer.loaded_library() is None
        or any(details.find(name) is None for name in NEED_MEMORY)
    ):
        return
    _watch()
    owners.add(owner)
    observer.keep_memory(True)


def release_memory(owner: Hashable) -> None:
    """Release the calling thread's memory for ``owner``.

    Does nothing if it didn't ask in this thread.
    """
    from otel_recfn.pytorch import observer

    owners = _per_thread.owners
    if owner in owners:
        owners.remove(owner)
        if not owners:
            observer.keep_memory(False)
