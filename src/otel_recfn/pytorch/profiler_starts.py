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

KINETO = ("torch.autograd.profiler", "_run_on_profiler_start")
LEGACY = (("torch.autograd", "_enable_profiler_legacy"), ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"))
"""The second module imports the function from the first one, and may not have been imported yet."""


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
        if details.find("profiler_start") is None or details.find("legacy_profiler_start") is None:
            return False
        for place in (KINETO, *LEGACY):
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
