"""Callbacks for the time when torch, or a part of it that it imports late, is imported.

This module imports neither.

The import hook is wrapt's, registered once per process; what waits for it is a list of ours, so
that waiting can be cancelled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log

_lock = ForkSafeLock()
_waiting: dict[str, list[tuple[list[Callable[[], None]], str]]] = {}
"""The functions that wait for a module, each in a list that cancelling empties, and what is
lost, while wrapt has our hook.
"""
_executed: set[str] = set()
"""The modules whose hook has run: their code has run, though for Python they are being imported
until the hook returns.
"""


def is_imported(module: str) -> bool:
    """Whether the module is there and all of its code has run."""
    found = sys.modules.get(module)
    is_being_imported = getattr(getattr(found, "__spec__", None), "_initializing", False)
    return found is not None and (module in _executed or not is_being_imported)


def call_at_torch_import(callback: Callable[[], None]) -> Callable[[], None]:
    """Run ``callback`` once torch is imported. Returns a function that cancels it."""
    return call_at_import("torch", callback, "operators and modules are not observed")


def call_at_import(module: str, callback: Callable[[], None], lost: str) -> Callable[[], None]:
    """Run ``callback`` once the module is imported; the rest is as in
    ``call_at_first_import``.
    """
    return call_at_first_import([module], callback, lost)


def call_at_first_import(
    modules: Iterable[str], callback: Callable[[], None], lost: str
) -> Callable[[], None]:
    """Run ``callback`` once: now if one of the modules is imported, else at the end of the first
    such import, in its thread.

    What it raises is logged, with ``lost`` as what is missing now, and goes no further. Returns a
    function that cancels it.
    """
    pending = [callback]
    for module in modules:
        if sys.modules.get(module) is None:
            _wait_for_import(module, pending, lost)
        elif is_imported(module):
            _run_remaining(pending, module, lost)
        else:  # too late for the hook
            log.warning(
                "otel-recfn was asked for while %s is being imported: %s; ask before or after that",
                module,
                lost,
            )
    return pending.clear


def _run_remaining(pending: list[Callable[[], None]], module: str, lost: str) -> None:
    """Run a callback, unless it was cancelled or has run."""
    try:
        for callback in [pending.pop() for _ in pending[:1]]:
            callback()
    except Exception as error:  # the user's `import torch` must go on
        if raised_by_signal_handler(error):
            raise
        log.exception("otel-recfn could not attach to %s; %s", module, lost)


def _wait_for_import(module: str, pending: list[Callable[[], None]], lost: str) -> None:
    with _lock:
        is_first = module not in _waiting
        # Many captures may pass.
        unfinished = [each for each in _waiting.get(module, ()) if each[0]]
        _waiting[module] = [*unfinished, (pending, lost)]
    if is_first:
        import wrapt  # late, as it takes 50 ms

        wrapt.register_post_import_hook(_was_imported, module)


def _was_imported(module: ModuleType) -> None:
    with _lock:
        _executed.add(module.__name__)
        ready = _waiting.pop(module.__name__, [])  # wrapt forgets a hook that ran
    for pending, lost in ready:
        _run_remaining(pending, module.__name__, lost)
