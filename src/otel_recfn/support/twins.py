"""Which of the native parts and their Python twins the user asks for, and which there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

VARIABLE = "OTEL_RECFN_" + "RECORDER"  # no setting any more: it goes with the last twins

Twin = TypeVar("Twin")


def wanted_twin() -> str:
    """What the variable says now; ``auto`` where it says nothing."""
    return os.environ.get(VARIABLE, "").strip().lower() or "auto"


def native_twin(imported: Callable[[], Twin], in_python: Twin) -> Twin:
    """What was imported where there is a native part, unless the user asks for Python's; else the Python twin.

    Imports: for a thread of the program's. ``support/native_part.py`` says why there is no native part.
    """
    if wanted_twin() == "python":
        return in_python
    try:
        return imported()
    except ImportError:  # no compiler where this was installed
        return in_python
