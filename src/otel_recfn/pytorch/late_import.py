"""Callbacks for the time when torch, or a part of it that it imports late, is imported. This module imports neither.

The import hook is wrapt's, registered once per process; what waits for it is a list of ours, so that waiting can be cancelled.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

from otel_recfn.support.forks import ForkSafeLock, OwnThread
from otel_recfn.support.signal_handlers import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

POLL_SECONDS = 0.02

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


def is_being_imported(module: ModuleType) -> bool:
    """Whether a thread is in the middle of importing the module."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def is_imported(module: str) -> bool:
    """Whether the module is there and all of its code has run."""
    found = sys.modules.get(module)
    return found is not None and (module in _executed or not is_being_imported(found))


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
    import wrapt  # noqa: F401 - here because it takes 50 ms, and because a thread of ours may need it later and must not import

    waiting = _Waiting(module, callback, lost)
    if sys.modules.get(module) is None:
        _wait_for_import(waiting)
    elif not is_imported(module):
        sysconfig.get_config_vars()  # imports a module at its first call, which the thread must not
        try:
            OwnThread(partial(_wait_in_thread, waiting), "otel-recfn torch import").start()
        except RuntimeError as error:  # no thread can be started
            log.warning("PyTorch is not observed: nothing can wait for the end of its import (%s)", error)
    else:
        waiting.run()
    return waiting.cancel


def _wait_for_import(waiting: _Waiting) -> None:
    with _lock:
        is_first = waiting.module not in _waiting
        _waiting.setdefault(waiting.module, []).append(waiting)
    if is_first:
        import wrapt

        wrapt.register_post_import_hook(_was_imported, waiting.module)


def _was_imported(module: ModuleType) -> None:
    with _lock:
        _executed.add(module.__name__)
        ready = _waiting.pop(module.__name__, [])  # wrapt forgets a hook that ran
    for waiting in ready:
        waiting.run()


def _wait_in_thread(waiting: _Waiting) -> None:
    """Wait in a thread, because another thread, or torch itself, is in the middle of the import: too late for the hook."""
    while (module := sys.modules.get(waiting.module)) is not None:
        if not is_being_imported(module):
            return waiting.run()
        time.sleep(POLL_SECONDS)
    return _wait_for_import(waiting)  # that import failed; there may be another
