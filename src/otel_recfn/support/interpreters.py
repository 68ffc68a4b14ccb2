"""Which interpreter this is: only the main one records, since a process has one recorder, and only under a GIL."""

from __future__ import annotations

import sys

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
