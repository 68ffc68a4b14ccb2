"""Callbacks for the time when torch, or a part of it that it imports late, is imported. This module imports neither.

The import hook is wrapt's, registered once per process; what waits for it is a list of ours, so that waiting can be cancelled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.signal_handlers import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

_lock = ForkSafeLock()
_waiting: dict[str, list[_Waiting]] = {}
"""The callbacks that wait, by module, while wrapt has a hook of ours for it."""
_executed: set[str] = set()
"""The modules whose hook has run: their code has run, though for Python they are being imported until the hook returns."""


class _Waiting:
    """A callback that runs at most once, unless it is cancelled before."""

    def __init__(self, module: str, callback: Callable[[], None], lost: str) -> None:
        self.module = module
        self._callback: Callable[[], None] | None = callback
        self._lost = lost

    def run(self) -> None:
        with _lock:
            callback, self._callback = self._callback, None
        if callback is None:
            return
        try:
            callback()
        except Exception as error:  # the user's `import torch` must go on
            if raised_by_signal_handler(error):
                raise
            log.exception("otel-recfn could not attach to %s; %s", self.module, self._lost)

    def cancel(self) -> None:
        with _lock:
            self._callback = None
            if self in (others := _waiting.get(self.module, [])):
                others.remove(self)


def is_imported(module: str) -> bool:
    """Whether the module is there and all of its code has run."""
    found = sys.modules.get(module)
    is_being_imported = getattr(getattr(found, "__spec__", None), "_initializing", False)
    return found is not None and (module in _executed or not is_being_imported)


def when_torch_is_imported(callback: Callable[[], None]) -> Callable[[], None]:
    """Run ``callback`` once torch is imported. Returns a function that cancels it."""
    return when_imported("torch", callback, "operators and modules are not observed")


def when_first_is_imported(modules: Iterable[str], callback: Callable[[], None], lost: str) -> Callable[[], None]:
    """Run ``callback`` once, with the first of the modules that is imported. Returns a function that cancels it."""
    left, waiting = [callback], list[Callable[[], None]]()

    def first() -> None:
        if left:  # else it was called for another one
            left.pop()()

    def cancel_all() -> None:
        left.clear()
        for each in waiting:
            each()

    for module in modules:
        waiting.append(when_imported(module, first, lost))
    return cancel_all


def when_imported(module: str, callback: Callable[[], None], lost: str) -> Callable[[], None]:
    """Run ``callback`` once: now if the module is imported, else at the end of its import, in the importing thread.

    What it raises is logged, with ``lost`` as what is missing now, and goes no further. Returns a function that cancels it.
    """
    waiting = _Waiting(module, callback, lost)
    if sys.modules.get(module) is None:
        _wait_for_import(waiting)
    elif is_imported(module):
        waiting.run()
    else:  # too late for the hook
        log.warning("otel-recfn was asked for while %s is being imported: %s; ask before or after that", module, lost)
    return waiting.cancel


def _wait_for_import(waiting: _Waiting) -> None:
    with _lock:
        is_first = waiting.module not in _waiting
        _waiting.setdefault(waiting.module, []).append(waiting)
    if is_first:
        import wrapt  # late, as it takes 50 ms

        wrapt.register_post_import_hook(_was_imported, waiting.module)


def _was_imported(module: ModuleType) -> None:
    with _lock:
        _executed.add(module.__name__)
        ready = _waiting.pop(module.__name__, [])  # wrapt forgets a hook that ran
    for waiting in ready:
        waiting.run()
