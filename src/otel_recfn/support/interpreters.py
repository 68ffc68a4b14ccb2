"""Tells subinterpreters apart: only the main interpreter records, because there is one recorder in a process."""

from __future__ import annotations

import sys

from otel_recfn.model.errors import InterpreterError
from otel_recfn.support.imports import imported

MODULE = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
"""CPython's, which can tell interpreters apart."""


def in_main_interpreter() -> bool:
    """Whether this code runs in the main interpreter; also where CPython can't tell."""
    try:
        module = imported(MODULE)
        return bool(module.get_current() == module.get_main())
    except (ImportError, AttributeError):
        return True


def refuse_subinterpreter() -> None:
    """Raises InterpreterError in a subinterpreter."""
    if not in_main_interpreter():
        raise InterpreterError(
            "otel-recfn records in the main interpreter only, and this is a subinterpreter: "
            "instrument or profile there; record_function works here too, and records nothing"
        )
