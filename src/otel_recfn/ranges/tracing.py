"""Lets code ask whether ``torch.compile`` is tracing it: ``pytorch/compiling.py`` makes it trace ``yes`` for ``is_traced``.

The native part isn't imported for it: ``otel-recfn doctor`` works without.
"""

from __future__ import annotations


def is_traced() -> bool:
    """Never in code that runs; torch.compile traces ``yes`` in its place."""
    return False


def yes() -> bool:
    """Traced in place of a function whose answer in compiled code is True."""
    return True
