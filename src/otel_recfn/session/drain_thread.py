"""The thread that drains: every 100 ms, 250 ms while much is recorded, at once when the recorder says so."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.draining import Draining
from otel_recfn.support.own_thread import OwnThread, at_work
from otel_recfn.support.timed_lock import taken

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

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread. If there can be none, that is logged."""
        self._thread = thread = OwnThread(self._run, "otel-recfn drain")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here, or a signal handler forked, whose child has started another
            log.warning("no thread drains what is recorded (%s): it is delivered by flush() and at the end", error)

    def stop(self) -> OwnThread | None:
        """Have the thread end after the drain that is under way. Returns it."""
        thread, self._thread = self._thread, None
        try:
            self._recorder.wake()
        except OUT_OF_MEMORY:  # it looks by itself before long
            pass
        return thread

    def after_fork_in_child(self) -> None:
        """In a child, where the parent's thread doesn't exist."""
        self._thread = None

    def _run(self) -> None:
        """Until this thread is stopped. No event says so: a signal handler that sets one as it is set waits for itself."""
        own, pause = threading.current_thread(), DRAIN_SECONDS
        with suppress_instrumentation():
            while self._thread is own:
                try:
                    self._recorder.wait(pause)
                    if self._thread is own:
                        pause = BUSY_DRAIN_SECONDS if self._drain() > BUSY_ROWS else DRAIN_SECONDS
                except OUT_OF_MEMORY:  # an error of this loop; a failed drain is logged by ``draining`` and tried again
                    time.sleep(DRAIN_SECONDS)

    def _drain(self) -> int:
        """Drain. Returns the number of rows."""
        with taken(self._draining.lock), at_work():  # a fork takes them in this order
            batch = self._draining.drain()
            self._also()
        return len(batch) if batch is not None else 0
