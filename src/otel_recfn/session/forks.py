"""What a session does around fork, and at the end of processes that run no exit handlers."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class Forking(Protocol):
    """Told of forks of the process."""

    def before_fork(self) -> None:
        """Let nothing be half done when the child is made."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Go on in the child, where no other thread lives."""


class Exiting(Protocol):
    """Told of the end of the process."""

    def at_exit(self) -> None:
        """Finish."""


def tell_of_forks(told: Forking) -> None:
    """Call its methods around every fork as long as it lives: hooks can't be taken back, so they don't keep it alive."""
    if not hasattr(os, "register_at_fork"):
        return
    held = weakref.ref(told)

    def forward(name: str) -> Callable[[], None]:
        def handle() -> None:
            living = held()
            if living is not None:
                getattr(living, name)()

        return handle

    os.register_at_fork(
        before=forward("before_fork"),
        after_in_parent=forward("after_fork_in_parent"),
        after_in_child=forward("after_fork_in_child"),
    )


def finish_in_multiprocessing_child(told: Exiting) -> None:
    """multiprocessing leaves its children with ``os._exit``: no exit handler runs, but its finalizers do."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
        util.register_after_fork(told, lambda living: util.Finalize(None, living.at_exit, exitpriority=0))
