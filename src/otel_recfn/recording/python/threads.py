"""The threads that record: each one's log, from its first range until the drain has seen its last.

Nothing here locks: a thread adds its log, a drain takes those of dead threads away, and who counts looks again where a drain
came in between.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque

from otel_recfn.recording.protocol import RecorderCounters
from otel_recfn.recording.python.log import Alive, Record, ThreadLog

NOTHING = RecorderCounters(recorded=0, dropped=0, lost_ends=0)


class ThreadLogs:
    """Of one recorder.

    Attributes:
        capacity: ranges that fit into a thread's log; of those that record their first from now on.
        ended_elsewhere: ends of ranges that other threads began.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.capacity = 1
        self.start_empty()

    def start_empty(self) -> None:
        """At birth, and in a forked child, where numbers go on so that its ids are not its parent's."""
        self._local = threading.local()
        self._logs: dict[int, ThreadLog] = {}
        self._buried: tuple[RecorderCounters, ThreadLog | None] = (NOTHING, None)
        """What the logs of dead threads counted, and the last of them: it may still be among the others."""
        self.ended_elsewhere: deque[Record] = deque()

    def own(self) -> ThreadLog:
        """The calling thread's."""
        try:
            log: ThreadLog = self._local.log
        except AttributeError:
            log = self._register()
        return log

    def existing(self) -> ThreadLog | None:
        """The calling thread's, where it has one."""
        return getattr(self._local, "log", None)

    def new_number(self) -> int:
        """Never given again."""
        return next(self._numbers)

    def find(self, number: int) -> ThreadLog | None:
        """That thread's, where it may still record or has ranges open."""
        return self._logs.get(number)

    def look(self) -> tuple[list[ThreadLog], list[ThreadLog]]:
        """All logs, and those whose threads are dead; names as they are now."""
        names = _thread_names()
        logs = list(self._logs.values())  # one call takes all
        dead = [log for log in logs if not log.thread_is_alive]
        for log in logs:
            if log not in dead:  # alive after its ident was looked up, so the ident was its own
                log.name = names.get(log.ident, log.name)
        return logs, dead

    def bury(self, log: ThreadLog) -> None:
        """Its thread is dead, and everything that it recorded was drained. What it counted stays."""
        self._buried = (_add(self._buried[0], log), log)
        del self._logs[log.number]

    def counters(self) -> RecorderCounters:
        """Of all threads."""
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

    def _register(self) -> ThreadLog:
        alive = Alive()
        log = ThreadLog(self.new_number(), self.capacity, alive)
        self._local.alive, self._local.log = alive, log
        self._logs[log.number] = log
        log.name = _thread_names().get(log.ident, "")
        return log


def _add(total: RecorderCounters, log: ThreadLog) -> RecorderCounters:
    return RecorderCounters(
        total.recorded + log.recorded - log.taken_back, total.dropped + log.dropped, total.lost_ends + log.lost_ends
    )


def _thread_names() -> dict[int | None, str]:
    # Not threading.current_thread(): it would leave a dummy thread behind for threads that Python didn't start.
    return {thread.ident: thread.name for thread in threading.enumerate()}
