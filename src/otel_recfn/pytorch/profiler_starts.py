"""Tells when a profiler of PyTorch's is about to start.

PyTorch has no hook for that, so the functions that its profilers call first are wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from otel_recfn.pytorch import details

WATCHED = ("profiler_start", "legacy_profiler_start")
"""The details of PyTorch that are wrapped, by their names in ``details.PYTHON``."""
IMPORTS_LEGACY = "torch.autograd.profiler_legacy"
"""A module that imports the second one's function by its name, and may not have been imported yet."""


class ProfilerStarts:
    """Wraps PyTorch's functions and unwraps them again.

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
