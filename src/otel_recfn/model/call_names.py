"""The names of traced Python calls, as torch.profiler writes them: ``model.py(12): forward``, or the repr of a C function."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
"""Greedy: a file's name may look like that too, a function's can't."""


class CalledCode(NamedTuple):
    """What was called."""

    function: str
    file: str = ""
    """Empty for a C function."""
    line: int = 0


def python_call_name(file: str, line: int, function: str) -> str:
    """The name of a call of a Python function."""
    return f"{file}({line}): {function}"


def called_code(name: str) -> CalledCode:
    """What a call of that name called."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        return CalledCode(name)
    return CalledCode(parts["function"], parts["file"], int(parts["line"]))
