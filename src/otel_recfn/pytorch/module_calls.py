"""Which traced Python calls are calls of an nn.Module or steps of an optimizer, and what the former are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.pytorch.called_objects import captures_of_calls
from otel_recfn.pytorch.module_names import InstanceNames
from otel_recfn.sources.calls import NameOfFrame

FILES_OF_CALLS = ("torch/nn/modules/module.py", "torch/optim/optimizer.py")
"""Where PyTorch has that code."""


class ModuleCalls:
    """A FrameNamer. Where hooks announce modules, it hides their calls: a module has one range.

    Args:
        names: of the modules.
        hooks_announce: whether hooks do so now.
    """

    def __init__(self, names: InstanceNames, hooks_announce: Callable[[], bool]) -> None:
        self._names, self._hooks_announce = names, hooks_announce
        self._optimizers = InstanceNames("Optimizer: ")

    def __call__(self, code: CodeType, usual: str) -> NameOfFrame | None:
        """See FrameNamer."""
        if code is _code_of("module_call"):
            return self._module
        return partial(self._step, usual) if code is _code_of("step_code") else None

    def _module(self, frame: FrameType) -> str | None:
        module = _first_argument(frame)
        if module is None:
            return None
        name = self._names.name(module)
        for called in list(captures_of_calls):
            called.see_module(module, name)
        return None if self._hooks_announce() else name

    def _step(self, usual: str, frame: FrameType) -> str:
        optimizer = _first_argument(frame)
        if optimizer is not None:
            name = self._optimizers.name(optimizer)
            for called in list(captures_of_calls):
                called.see_optimizer(optimizer, name)
        return usual


def _first_argument(frame: FrameType) -> Any:
    return frame.f_locals.get(frame.f_code.co_varnames[0])


def _code_of(detail: str) -> CodeType | None:
    """Of what runs when a module is called, or after an optimizer's step; None before torch was imported."""
    if details.PYTHON[detail].place[0] not in sys.modules:
        return None
    code: CodeType | None = getattr(details.find(detail), "__code__", None)
    return code
