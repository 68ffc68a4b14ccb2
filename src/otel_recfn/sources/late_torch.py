"""Tells when torch is there, without ever importing it.

The import hook is wrapt's, registered once per process; what waits for it is a list of ours, so that waiting can be given up.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import wrapt

from otel_recfn.model.fork_safe_lock import ForkSafeLock
from otel_recfn.model.own_thread import OwnThread

log = logging.getLogger("otel_recfn")

POLL_SECONDS = 0.02

_lock = ForkSafeLock()
_waiting: list[_Waiting] = []
_hook_registered = False


class _Waiting:
    """One callback that runs at most once, unless it is cancelled before."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def run(self) -> None:
        with _lock.held:
            callback, self._callback = self._callback, None
        if callback is None:
            return
        try:
            callback()
        except Exception:  # the user's `import torch` must go on
            log.exception("otel-recfn could not attach to torch; operators and modules are not observed")

    def cancel(self) -> None:
        with _lock.held:
            self._callback = None
            if self in _waiting:
                _waiting.remove(self)


def when_torch_is_imported(callback: Callable[[], None]) -> Callable[[], None]:
    """Run ``callback`` once: now if torch is imported, else at the end of its import, in the importing thread.

    What it raises is logged and goes no further. Returns a function that calls it off.
    """
    waiting = _Waiting(callback)
    torch = sys.modules.get("torch")
    if torch is None:
        _wait_for_import(waiting)
    elif _is_being_imported(torch):
        sysconfig.get_config_vars()  # imports a module at its first call, which the thread must not
        OwnThread(partial(_poll, waiting), "otel-recfn torch import").start()
    else:
        waiting.run()
    return waiting.cancel


def _wait_for_import(waiting: _Waiting) -> None:
    global _hook_registered
    with _lock.held:
        _waiting.append(waiting)
        register, _hook_registered = not _hook_registered, True
    if register:
        wrapt.register_post_import_hook(_torch_was_imported, "torch")


def _torch_was_imported(_torch: ModuleType) -> None:
    global _hook_registered
    with _lock.held:
        ready, _waiting[:] = list(_waiting), []
        _hook_registered = False  # wrapt forgets a hook that ran
    for waiting in ready:
        waiting.run()


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _poll(waiting: _Waiting) -> None:
    """Too late for the hook, too early for the callback: another thread, or torch itself, is in the middle of the import."""
    while (torch := sys.modules.get("torch")) is not None:
        if not _is_being_imported(torch):
            return waiting.run()
        time.sleep(POLL_SECONDS)
    return _wait_for_import(waiting)  # that import failed; there may be another
