"""Names of code and calls, as torch.profiler has them: ``model.py(12): forward``, or the repr of a
C function.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from otel_recfn.support.interruptions import ignoring_errors

MAX_WRAPPERS = 50
_NAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
"""The pattern of a name.

It is greedy, because a file's name may look like that too, and a function's can't.
"""


class CalledCode(NamedTuple):
    """The function that was called, and where it is written."""

    function: str
    file: str = ""
    """The file; empty for a C function."""
    line: int = 0


def python_call_name(file: str, line: int, function: str) -> str:
    """The name of a call of a Python function."""
    return f"{file}({line}): {function}"


def called_code(name: str) -> CalledCode:
    """The code that a call of that name called."""
    parts = _NAME.fullmatch(name)
    return (
        CalledCode(name)
        if parts is None
        else CalledCode(parts["function"], parts["file"], int(parts["line"]))
    )


def code_text(function: Any) -> str:
    """``file(line): module.qualified_name`` of a function, a method or an object that is called;
    empty if there is none.

    Of a function that ``functools.wraps`` made, it is that of the wrapped one. Never raises.
    """
    with ignoring_errors():  # it is written in C, or its attributes are the program's own code
        function = _innermost(function)
        if not hasattr(function, "__code__"):
            function = _innermost(type(function).__call__)
        code = function.__code__
        return python_call_name(
            code.co_filename, code.co_firstlineno, f"{function.__module__}.{function.__qualname__}"
        )
    return ""


def _innermost(function: Any) -> Any:
    for _ in range(MAX_WRAPPERS):
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            break
        function = wrapped
    return function
