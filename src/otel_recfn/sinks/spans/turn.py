"""Whose turn it is with the spans: the worker's, until it waits for an exporter and the end of the program doesn't.

    worker    ──work──┤ waits ├──work──┤ waits ................├ Superseded ──► what the other left to it
    closing                            └ take ─work─ give_back ┘

Whatever is known of batches and spans is consistent wherever the worker waits.
"""

from __future__ import annotations

import threading

from otel_recfn.sinks.background_pace import GivenUp
from otel_recfn.support.timed_lock import while_taken


class Superseded(GivenUp):
    """Another thread has finished the work."""


class Turn:
    """Of one worker."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waits = self._taken = False
        self._held = threading.Lock()
        """By who took it, until it is done. No event: one that finds no memory as it is set is waited for without end."""
        self._held.acquire()

    def wait(self) -> None:
        """The worker calls what may take long; another thread may go on meanwhile."""
        while_taken(self._lock, self._wait)

    def _wait(self) -> None:
        self._waits = True

    def go_on(self) -> None:
        """The worker is back.

        Raises:
            Superseded: another thread took its turn, and is done.
        """
        if while_taken(self._lock, self._go_on):
            self._held.acquire()
            self._held.release()
            raise Superseded

    def _go_on(self) -> bool:
        self._waits = False
        return self._taken

    def take(self) -> bool:
        """Another thread goes on, if the worker waits. Once."""
        return while_taken(self._lock, self._take)

    def _take(self) -> bool:
        if not self._waits or self._taken:
            return False
        self._taken = True
        return True

    def give_back(self) -> None:
        """It is done."""
        self._held.release()
