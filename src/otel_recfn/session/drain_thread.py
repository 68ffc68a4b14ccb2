"""The thread that drains: every 100 ms, 250 ms while much is recorded, at once when the recorder says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.draining import Draining
from otel_recfn.support.own_thread import OwnThread, at_work

log = logging.getLogger("otel_recfn")

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.25
BUSY_ROWS = 10_000
"""After a drain of more the next one comes later: what each batch costs, mostly with the GIL held, is then of more rows.
How much may wait in a thread's buffer is the recorder's to say."""


class DrainThread:
    """The thread; there is one at most. One thread at a time may start and stop it.

    Args:
        recorder: tells when it is time.
        draining: what the thread does then.
        also: called after each drain, with the lock of ``draining`` held.
    """

    def __init__(self, recorder: Recorder, draining: Draining, also: Callable[[], None]) -> None:
        self._recorder, self._draining, self._also = recorder, draining, also
        self._thread: OwnThread | None = None
        self._failed = False

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread. If there can be none, that is logged."""
        self._thread = thread = OwnThread(self._run, "otel-recfn drain")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here
            log.warning("no thread drains what is recorded (%s): it is delivered by flush() and at the end", error)

    def stop(self) -> OwnThread | None:
        """Have the thread end after the drain that is under way. Returns it."""
        thread, self._thread = self._thread, None
        self._recorder.wake()
        return thread

    def after_fork_in_child(self) -> None:
        """In a child, where the parent's thread doesn't exist."""
        self._thread = None

    def _run(self) -> None:
        """Until this thread is stopped."""
        own, pause = threading.current_thread(), DRAIN_SECONDS
        with suppress_instrumentation():
            while self._thread is own:
                try:
                    self._recorder.wait(pause)
                    if self._thread is own:
                        pause = BUSY_DRAIN_SECONDS if self._drain() > BUSY_ROWS else DRAIN_SECONDS
                except Exception:  # no memory, say; a drain that fails is logged by ``draining``
                    self._tell_failed()

    def _tell_failed(self) -> None:
        """Log it, once."""
        if not self._failed:
            self._failed = True
            with suppress(Exception):
                log.exception("the thread that drains failed; it goes on")

    def _drain(self) -> int:
        """Drain. Returns the number of rows."""
        with self._draining.lock, at_work():  # a fork takes them in this order
            batch = self._draining.drain()
            self._also()
        return len(batch) if batch is not None else 0
