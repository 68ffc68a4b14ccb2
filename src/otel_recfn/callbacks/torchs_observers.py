"""Tells ranges to PyTorch's own observers while some run: torch.profiler, its legacy profiler, ExecutionTraceObserver.

PyTorch has no hook for their starts and ends, so the functions that start and end them are wrapped, once torch is imported.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import when_torch_is_imported
from otel_recfn.support.forks import ForkSafeLock

OBSERVERS = (
    ("profiler_enable", "profiler_disable"),
    ("legacy_profiler_start", "legacy_profiler_stop"),
    ("execution_trace_enable", "execution_trace_disable"),
)
"""What starts and what ends them, by their names in ``details.PYTHON``."""
IMPORTED_BY_NAME = ("torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy", "torch.profiler.profiler")
"""Modules that may have these functions under the same names."""

_lock = ForkSafeLock()
_running = 0
_watching = False


def running() -> int:
    """How many run in the process, as far as is known."""
    return _running


def watch() -> None:
    """Tell ranges to them from now on, or once torch is imported."""
    global _watching
    with _lock:
        watching, _watching = _watching, True
    if not watching:
        when_torch_is_imported(_wrap_all)


def _wrap_all() -> None:
    from otel_recfn.callbacks import record_function  # noqa: F401 - it hands ranges of record_function to callbacks

    for start, end in OBSERVERS:
        if details.find(start) is not None and details.find(end) is not None:
            _wrap(start, 1)
            _wrap(end, -1)
    if getattr(sys.modules["torch.autograd.profiler"], "_is_profiler_enabled", False):
        _change(1)


def _wrap(name: str, change: int) -> None:
    original = details.find(name)

    @wraps(original)
    def counted(*args: Any, **keywords: Any) -> Any:
        result = original(*args, **keywords)
        _change(change)
        return result

    attribute = details.PYTHON[name].place[1]
    for module in map(sys.modules.get, IMPORTED_BY_NAME):
        if getattr(module, attribute, None) is original:
            setattr(module, attribute, counted)


def _change(change: int) -> None:
    """One has started, or ended; one that ends may have started before we looked."""
    from otel_recfn.callbacks.registry import tell_others

    global _running
    with _lock:
        was, _running = _running, max(0, _running + change)
        if bool(was) != bool(_running):
            tell_others(_running > 0)
