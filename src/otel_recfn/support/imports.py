"""Modules that are asked for again and again, without the lock of their import."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of this name, imported by the first call.

    ``import_module`` takes the module's lock each time. In CPython 3.10 a signal handler that interrupts it and asks for the
    same module waits for itself.

    Raises:
        ImportError: there is none.
    """
    return sys.modules.get(name) or import_module(name)
