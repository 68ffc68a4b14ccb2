"""The end of processes that run no exit handlers."""

from __future__ import annotations

import sys
from typing import Protocol


class Exiting(Protocol):
    """Told of the end of the process."""

    def at_exit(self) -> None:
        """Finish."""


def finish_in_multiprocessing_child(told: Exiting) -> None:
    """multiprocessing leaves its children with ``os._exit``: no exit handler runs, but its finalizers do."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
        util.register_after_fork(told, lambda living: util.Finalize(None, living.at_exit, exitpriority=0))
