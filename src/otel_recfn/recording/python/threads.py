"""The threads that record: each one's log, from its first range until the drain has seen its last record.

Nothing here locks: a thread adds its log, a drain removes those of dead threads, and ``counters`` reads again where a drain has
removed one meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from otel_recfn.recording.protocol import RecorderCounters
from otel_recfn.recording.python.log import Alive, Record, ThreadLog

NOTHING = RecorderCounters(recorded=0, dropped=0, lost_ends=0)


class ThreadLogs:
    """The logs of one recorder.

    Attributes:
        capacity: how many ranges fit into the log of a thread that records its first one from now on.
        ended_elsewhere: ends of ranges that other threads began.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.capacity = 1
        self.when_recorded: Callable[[], object] | None = None
        """Called once, by the next thread that begins to record."""
        self.start_empty()

    def start_empty(self) -> None:
        """Called when it is made, and in a forked child, where numbers go on so that event ids differ from the parent's."""
        self._local = threading.local()
        self._logs: dict[int, ThreadLog] = {}
        self._buried: tuple[RecorderCounters, ThreadLog | None] = (NOTHING, None)
        """The sum of what the logs of dead threads counted, and the last of these logs, which may still be in ``_logs``."""
        self.ended_elsewhere: deque[Record] = deque()

    def set_capacity(self, capacity: int) -> None:
        """So many ranges fit into each thread's log; a log that has a larger bound keeps it."""
        self.capacity = capacity
        for log in list(self._logs.values()):
            log.set_capacity(max(capacity, log.capacity))

    def own(self) -> ThreadLog:
        """The calling thread's log, made where it has none."""
        try:
            log: ThreadLog = self._local.log
        except AttributeError:
            log = self._register()
        return log

    def tell_recorded(self) -> None:
        """The calling thread begins to record."""
        call, self.when_recorded = self.when_recorded, None
        if call is not None:
            call()

    def existing(self) -> ThreadLog | None:
        """The calling thread's log; None where it has none."""
        return getattr(self._local, "log", None)

    def new_number(self) -> int:
        """A number that no thread has had; it is never given again."""
        return next(self._numbers)

    def find(self, number: int) -> ThreadLog | None:
        """The log of the thread with that number; None where the thread is gone and has no range open."""
        return self._logs.get(number)

    def look(self) -> tuple[list[ThreadLog], list[ThreadLog]]:
        """All logs, and those whose threads are dead; names as they are now."""
        names = _thread_names()
        logs = list(self._logs.values())  # one call takes all
        dead = []
        for log in logs:
            if log.thread_is_alive:  # after its ident was looked up, so the ident was its own
                log.name = names.get(log.ident, log.name)
            else:
                dead.append(log)
        return logs, dead

    def bury(self, log: ThreadLog) -> None:
        """Remove the log of a dead thread of which everything was drained. What it counted stays."""
        self._buried = (_add(self._buried[0], log), log)
        del self._logs[log.number]

    def counters(self) -> RecorderCounters:
        """Counts of all threads, also of those that are gone."""
        while True:
            before = self._buried
            logs = list(self._logs.values())
            if self._buried is before:
                break
        total, last = before
        for log in logs:
            if log is not last:
                total = _add(total, log)
        return total

    def dropped(self) -> dict[int, int]:
        """How many ranges each thread that isn't buried has dropped, by its number."""
        return {log.number: log.dropped for log in list(self._logs.values()) if log.dropped}

    def _register(self) -> ThreadLog:
        alive = Alive()
        log = ThreadLog(self.new_number(), self.capacity, alive)
        self._local.alive, self._local.log = alive, log
        self._logs[log.number] = log
        log.name = _thread_names().get(log.ident, "")
        return log


def _add(total: RecorderCounters, log: ThreadLog) -> RecorderCounters:
    return RecorderCounters(
        recorded=total.recorded + log.recorded - log.taken_back,
        dropped=total.dropped + log.dropped,
        lost_ends=total.lost_ends + log.lost_ends,
        unsampled=total.unsampled + log.unsampled,
    )


def _thread_names() -> dict[int | None, str]:
    # Not threading.current_thread(): it would leave a dummy thread behind for threads that Python didn't start.
    return {thread.ident: thread.name for thread in threading.enumerate()}
