"""Which traced Python calls are calls of an nn.Module, and what these are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.pytorch.module_names import InstanceNames
from otel_recfn.sources.calls.protocol import Hides

FILE_OF_CALLS = "torch/nn/modules/module.py"
"""Where PyTorch has that code."""


class ModuleCalls:
    """A ModuleNamer. Where hooks announce modules, it hides their calls: a module has one range.

    Args:
        names: of the modules.
        hooks_announce: whether hooks do so now.
    """

    def __init__(self, names: InstanceNames, hooks_announce: Callable[[], bool]) -> None:
        self._names, self._hooks_announce = names, hooks_announce

    def __call__(self, code: CodeType) -> Hides | Callable[[FrameType], str | None] | None:
        """See ModuleNamer."""
        if code is not _code_of_call():
            return None
        return self._name

    def _name(self, frame: FrameType) -> str | None:
        if self._hooks_announce():
            return None
        module: Any = frame.f_locals.get(frame.f_code.co_varnames[0])
        return self._names.name(module) if module is not None else None


def _code_of_call() -> CodeType | None:
    """Of what runs when a module is called; None before torch was imported."""
    if details.PYTHON["module_call"].place[0] not in sys.modules:
        return None
    code: CodeType | None = getattr(details.find("module_call"), "__code__", None)
    return code
