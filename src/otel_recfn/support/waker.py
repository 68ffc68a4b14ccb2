"""Ends a thread's wait. Neither an event nor a condition: whoever is in the middle of using one holds its lock, and a signal
handler that interrupts that would find it half changed, or wait for a thread that waits for the lock."""

from __future__ import annotations

import threading

from otel_recfn.model.errors import OUT_OF_MEMORY

_NO_MATTER = (RuntimeError, *OUT_OF_MEMORY)  # made once: there may be no memory for it in the middle of an error


class Waker:
    """One thread at a time waits; any may wake it, also in the middle of waking it."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Until it is woken (True), or has been since it last was, or so long at most."""
        return self._asleep.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """End the wait, or the next one before it begins."""
        try:
            self._asleep.release()
        except _NO_MATTER:  # it has been woken already
            pass
