"""Which interpreter this is: only the main one records, since a process has one recorder, and only under a GIL."""

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


def is_free_threaded() -> bool:
    """Whether this CPython was built to run without a GIL, which guards the state of the native part.

    Also where ``PYTHON_GIL=1`` switches it on: there our native part would be another one, for other headers.
    """
    return "t" in getattr(sys, "abiflags", "")


def refuse_unrecorded() -> None:
    """Raises InterpreterError where nothing is recorded: in a subinterpreter, and in a free-threaded CPython."""
    if is_free_threaded():
        raise InterpreterError(
            "otel-recfn needs a GIL, and this CPython is free-threaded: instrument or profile with the usual build, "
            "whose name has no t at its end; record_function works here too, and records nothing"
        )
    if not in_main_interpreter():
        raise InterpreterError(
            "otel-recfn records in the main interpreter only, and this is a subinterpreter: "
            "instrument or profile there; record_function works here too, and records nothing"
        )
