"""What a function or a call is called, and where it is written: the text of the ``code`` column, and names of traced calls.

Names are as torch.profiler writes them: ``model.py(12): forward``, or the repr of a C function.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from otel_recfn.support.interrupts import raised_by_signal_handler

MOST_WRAPPERS = 50
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


def code_text(function: Any) -> str:
    """``file(line): module.qualified_name`` of a function, a method or an object that is called; empty where there is none.

    Of a function that ``functools.wraps`` tells of, the wrapped one. Never raises.
    """
    try:
        function = _innermost(function)
        if not hasattr(function, "__code__"):
            function = _innermost(type(function).__call__)
        code = function.__code__
        return python_call_name(code.co_filename, code.co_firstlineno, f"{function.__module__}.{function.__qualname__}")
    except Exception as raised:  # it is written in C, or its attributes are the program's own code
        if raised_by_signal_handler(raised):
            raise
        return ""


def _innermost(function: Any) -> Any:
    for _ in range(MOST_WRAPPERS):
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            break
        function = wrapped
    return function
