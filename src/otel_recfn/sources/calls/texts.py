"""What traced calls are called, and which are not shown: of ours, none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeAlias

from otel_recfn.model.call_names import python_call_name
from otel_recfn.sources.calls.protocol import CallText, Hides

OWN = str(Path(__file__).parents[2]) + os.sep
CALLS_PROGRAM = tuple(OWN + part for part in ("ranges" + os.sep, "runtime" + os.sep, f"sources{os.sep}steps.py"))
"""What of ours calls functions of the program, which are to be seen."""

ModuleNamer: TypeAlias = "Callable[[CodeType], Hides | Callable[[FrameType], str | None] | None]"
"""Of the code that runs an nn.Module's call: how its calls are named, or that they aren't shown. None for other code."""


class ProgramTexts:
    """Names as torch.profiler's, but that those of C functions have no addresses: a method has one name.

    Args:
        module_namer: knows calls of modules.
    """

    def __init__(self, module_namer: ModuleNamer) -> None:
        self._module_namer = module_namer
        self._prefixes = path_prefixes(sys.path)

    def of_code(self, code: CodeType, line: int) -> CallText:
        """See CallTexts.of_code."""
        file = code.co_filename
        if file.startswith(OWN):
            return Hides.ITSELF if file.startswith(CALLS_PROGRAM) else Hides.ALL_BELOW
        module = self._module_namer(code)
        return module if module is not None else python_call_name(self._trimmed(file), line, code.co_name)

    def of_function(self, function: Any) -> str:
        """See CallTexts.of_function."""
        name = getattr(function, "__name__", None) or type(function).__name__
        bound_to = getattr(function, "__self__", None)
        if bound_to is None or isinstance(bound_to, ModuleType):
            return f"<built-in function {name}>"
        return f"<built-in method {name} of {type(bound_to).__name__} object>"

    def _trimmed(self, file: str) -> str:
        for prefix in self._prefixes:
            if file.startswith(prefix):
                return file[len(prefix) :]
        return file


def path_prefixes(path: list[str]) -> tuple[str, ...]:
    """What to take away from the names of files that modules of this ``sys.path`` come from, the longest first."""
    folders = {os.path.abspath(folder).rstrip(os.sep) + os.sep for folder in path if isinstance(folder, str)}
    return tuple(sorted(folders, key=len, reverse=True))
