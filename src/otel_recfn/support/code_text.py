"""What a function is called and where it is written, as the text of the ``code`` column."""

from __future__ import annotations

from typing import Any

from otel_recfn.model.call_names import python_call_name
from otel_recfn.support.interrupts import raised_by_signal_handler

MOST_WRAPPERS = 50


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
