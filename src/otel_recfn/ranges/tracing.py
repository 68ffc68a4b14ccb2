"""Whether ``torch.compile`` is tracing, for code that it traces: ``pytorch/compiling.py`` tells it what to trace here."""

from __future__ import annotations


def is_traced() -> bool:
    """Never in code that runs; torch.compile traces ``yes`` in its place."""
    return False


def yes() -> bool:
    """An answer for traced code."""
    return True


def no() -> bool:
    """The other."""
    return False
