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
    module = sys.modules.get(name)
    return import_module(name) if module is None or is_being_imported(module) else module


def is_being_imported(module: ModuleType) -> bool:
    """Whether a thread is in the middle of importing it."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
