"""Hidden files that the process removes when SIGTERM ends it.

The native part does it, in the signal's own handler, and then lets SIGTERM have its default: a handler in Python would make the
program wait for its main thread to come back from C, and be seen by it. It is installed only where nobody has another one, and
the program's own, installed later, replaces it. Without the native part nothing happens: the next process sweeps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from otel_recfn.support.own_file import Identity

native: Any
try:
    from otel_recfn import _native as native
except ImportError:  # no compiler where this was installed
    native = None

_hold = getattr(native, "remove_at_sigterm", None)


class RemovedAtSigterm:
    """A hidden name that SIGTERM removes, as long as it leads to one of two files."""

    def __init__(self, path: Path, files: tuple[Identity, Identity]) -> None:
        self._pid = os.getpid()
        self._place: int = _hold(os.fsencode(path), *files[0], *files[1]) if _hold is not None else -1

    def call_off(self) -> None:
        """Leave it alone from now on."""
        if self._place >= 0 and self._pid == os.getpid():
            native.keep_at_sigterm(self._place)
        self._place = -1
