"""Hidden files that the process removes when SIGTERM ends it.

The native part does it in a signal handler in C, which then lets SIGTERM take its default action. A handler in Python would run
only when the main thread comes back from C, and the program would see it. Ours is installed only where there is no other, and
one that the program installs later replaces it.
"""

from __future__ import annotations

import os
from pathlib import Path

from otel_recfn import _native
from otel_recfn.support.own_file import Identity


class RemovedAtSigterm:
    """A hidden name that SIGTERM removes, provided that it leads to one of two files then: the copies swap names."""

    def __init__(self, path: Path, files: tuple[Identity, Identity]) -> None:
        self._pid = os.getpid()
        self._place = _native.remove_at_sigterm(os.fsencode(str(path)), *files[0], *files[1])

    def call_off(self) -> None:
        """Leave it alone from now on."""
        if self._place >= 0 and self._pid == os.getpid():
            _native.keep_at_sigterm(self._place)
        self._place = -1
