"""Threads that take turns: the test says who goes on at each point where another thread may come first, and how late it is.

A background sink runs in it as it is; what its threads wait for, and the clocks that they read, are replaced (``replaced``).
So each order of events is played without a sleep, as often as one likes, and a wait that nothing ends is found.
"""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from batches import BASE_NS
from otel_recfn.sinks import background, background_pace, background_queue, background_worker
from otel_recfn.sinks.spans import delivery, export_watch, leavable_calls, open_units, turn
from otel_recfn.sinks.spans import sink as spans_sink
from otel_recfn.support import insisting
from otel_recfn.support.thread_time import LEAST_SHARE, LOOK_S

MOST_STEPS = 50_000
NS = 1_000_000_000


def _now() -> bool:
    return True


class Hangs(AssertionError):
    """A thread waits for what nobody does."""


class Task:
    """A thread other than the one that plays."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.greenlet = greenlet(run)
        self.ready: Callable[[], object] = _now
        self.until = math.inf
        self.turns = 0
        """How often it went on."""

    @property
    def lives(self) -> bool:
        return not self.greenlet.dead


class Turns:
    """Who goes on, and when.

    Args:
        choose: given n, a number below it.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose, self.now, self.steps = choose, 0.0, 0
        self.tasks: list[Task] = []
        self._player = getcurrent()

    def start(self, run: Callable[[], object]) -> Task:
        task = Task(run)
        self.tasks.append(task)
        return task

    def current(self) -> Task | None:
        """None where it is the one that plays."""
        here = getcurrent()
        return next((task for task in self.tasks if task.greenlet is here), None)

    def may_switch(self) -> None:
        """Another thread may come first here."""
        self.count_step()
        task = self.current()
        if task is not None:
            task.ready, task.until = _now, math.inf
            self._player.switch()
            return
        while self.choose(2) and self._go_on():
            pass

    def wait_for(self, ready: Callable[[], object], timeout_s: float) -> bool:
        """Wait until it is ``ready``, so long at most; whether it is."""
        self.count_step()
        until, task = self.now + max(0.0, timeout_s), self.current()
        if task is not None:
            task.ready, task.until = ready, until
            if not ready():
                self._player.switch()
            return bool(ready())
        while not ready() and self.now < until and self.step(until):
            pass
        return bool(ready())

    def step(self, until: float = math.inf) -> bool:
        """One thread goes on to its next point, or time goes by to the next moment at which one may. False where none can."""
        if self.choose(8) and self._go_on():
            return True
        moments = [task.until for task in self.tasks if task.lives and self.now < task.until < until]
        moment = min([*moments, until])
        if moment < math.inf:
            self.now = moment
        return moment < math.inf or self._go_on()

    def _go_on(self) -> bool:
        """One of the threads that can."""
        self.count_step()
        self.tasks = [task for task in self.tasks if task.lives]
        able = [task for task in self.tasks if self.now >= task.until or task.ready()]
        if able:
            task = able[self.choose(len(able))]
            task.turns += 1
            task.greenlet.switch()
        return bool(able)

    def count_step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Hangs("this goes on without end")

    def finish(self) -> None:
        """All threads go on until nothing more can happen."""
        while self.step():
            pass


class Waker:
    """In place of support/waker.py's."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._woken = turns, False

    def wait(self, timeout_s: float) -> bool:
        woken = self._turns.wait_for(lambda: self._woken, timeout_s)
        self._woken = self._woken and not woken
        return woken

    def wake(self) -> None:
        self._woken = True


class ThreadTime:
    """In place of support/thread_time.py's: who goes on between two looks has had a processor."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._task: Task | None = None

    def begin(self) -> None:
        self._task = self._turns.current()

    def seconds(self) -> float:
        least_s = LEAST_SHARE * LOOK_S
        return 2 * least_s * self._task.turns if self._task is not None else 0.0


class Lock:
    """In place of threading's."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._is_taken = turns, False

    def acquire(self) -> None:
        if self._is_taken and not self._turns.wait_for(lambda: not self._is_taken, math.inf):
            raise Hangs("a lock that nobody lets go of is waited for")
        self._is_taken = True

    def release(self) -> None:
        self._is_taken = False


class OwnThread:
    """In place of support/own_thread.py's."""

    def __init__(self, turns: Turns, run: Callable[[], object]) -> None:
        self._turns, self._run, self.ident = turns, run, None
        self.task: Any = None

    def start(self) -> None:
        self.task, self.ident = self._turns.start(self._run), 1  # type: ignore[assignment]

    def is_alive(self) -> bool:
        return self.task is not None and self.task.lives

    def wait_for_end(self, timeout_s: float) -> None:
        self._turns.wait_for(lambda: not self.is_alive(), timeout_s)


def replaced(turns: Turns, patch: pytest.MonkeyPatch) -> list[OwnThread]:
    """From here on, new background sinks run in these turns. Returns the threads that they will make."""

    def thread_time() -> float:
        turns.may_switch()
        return 0.0

    def monotonic() -> float:
        turns.count_step()
        return turns.now

    clock = types.SimpleNamespace(
        monotonic=monotonic,
        thread_time=thread_time,
        time_ns=lambda: BASE_NS + int(turns.now * NS),
        sleep=lambda seconds: turns.wait_for(lambda: False, seconds),
    )
    timed = (background, background_pace, background_worker, delivery, export_watch, spans_sink, open_units, insisting)
    for module in timed:
        patch.setattr(module, "time", clock)
    for module in (background_pace, background_queue, export_watch, leavable_calls):
        patch.setattr(module, "Waker", lambda: Waker(turns))
    patch.setattr(background_worker, "ThreadTime", lambda: ThreadTime(turns))
    threads: list[OwnThread] = []

    def own_thread(run: Callable[[], object], _name: str) -> OwnThread:
        threads.append(OwnThread(turns, run))
        return threads[-1]

    def current_thread() -> object:
        here = turns.current()
        return next((thread for thread in threads if thread.task is not None and thread.task is here), None) or "the player"

    patch.setattr(background, "OwnThread", own_thread)
    patch.setattr(background, "threading", types.SimpleNamespace(current_thread=current_thread))
    patch.setattr(leavable_calls, "OwnThread", lambda run, _name: OwnThread(turns, run))
    patch.setattr(turn, "threading", types.SimpleNamespace(Lock=lambda: Lock(turns), RLock=threading.RLock))
    patch.setattr(
        background_queue.Flush,
        "wait",
        lambda flush, timeout_s: turns.wait_for(lambda: not flush._undone.locked(), timeout_s),
    )
    return threads
