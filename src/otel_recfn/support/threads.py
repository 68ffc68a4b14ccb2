"""What threads are here."""

from __future__ import annotations

import threading
from types import BuiltinFunctionType


def threads_are_greenlets() -> bool:
    """Whether new threads are greenlets: gevent and eventlet replace Python's
    (``monkey.patch_all()``).

    Such a thread goes on only where another one waits by one of Python's means.
    """
    return not isinstance(threading.get_ident, BuiltinFunctionType)
