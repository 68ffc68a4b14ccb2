"""The end of the process: exit handlers, and processes that run none."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Protocol

from opentelemetry import trace


class ExitHandler:
    """Has a function called at exit before the handler that shuts the span provider down.

    Exit handlers run last in, first out, so ours has to be registered after the provider's.

    Args:
        at_exit: is called.
    """

    def __init__(self, at_exit: Callable[[], None]) -> None:
        self._at_exit = at_exit
        self._provider: object = None

    def follow_provider(self) -> None:
        """Register the function, again if the provider is another one than the last time."""
        provider = trace.get_tracer_provider()
        if provider is not self._provider:
            self._provider = provider
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def unregister(self) -> None:
        """Take the registration back."""
        atexit.unregister(self._at_exit)
        self._provider = None


class Exiting(Protocol):
    """Told of the end of the process."""

    def at_exit(self) -> None:
        """Finish."""


def finish_in_multiprocessing_child(told: Exiting) -> None:
    """Register with multiprocessing: its children end by ``os._exit``, which runs its finalizers but no exit handlers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
        util.register_after_fork(told, lambda living: util.Finalize(None, living.at_exit, exitpriority=0))
