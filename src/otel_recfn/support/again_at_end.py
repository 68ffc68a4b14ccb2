"""A step that may be asked for while it runs: it runs once more then, at its end."""

from __future__ import annotations

from collections.abc import Callable


class AgainAtEnd:
    """Runs a step for every request, one after the other. For one thread, which a signal handler may interrupt anywhere.

    A request that comes while the step runs returns at once: the step runs again when it is done.

    Args:
        step: is run.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._asked = self._done = object()
        self._running = False

    def ask(self) -> None:
        """Run the step, or have it run again by who runs it now."""
        self._asked = object()
        while self._asked is not self._done and not self._running:
            self._running = True
            try:
                asked = self._asked
                self._step()
                self._done = asked
            finally:
                self._running = False
