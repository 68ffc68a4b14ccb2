"""The queue before threads of ours, where several do the same: a flush is had when what came before is done."""

from __future__ import annotations

import threading

import pytest

from otel_recfn.sinks.task_queue import Flush, TaskQueue
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python


def whole_numbers(most: int) -> TaskQueue[int]:
    return TaskQueue(most, weigh=lambda task: task, goes_first=lambda _task: True)


class Working(threading.Thread):
    """Has the first task in hand until it is let go, and then what comes next."""

    def __init__(self, queue: TaskQueue[int]) -> None:
        super().__init__(daemon=True)
        self._queue, self.let_go, self.has_one = queue, threading.Event(), threading.Event()
        self.second: object = None
        self.start()

    def run(self) -> None:
        self._queue.next()
        self.has_one.set()
        self.let_go.wait()
        self.second = self._queue.next()


def test_a_flush_is_had_when_no_thread_has_anything_in_hand() -> None:
    queue = whole_numbers(10)
    queue.put(3)
    first = Working(queue)
    assert first.has_one.wait(PATIENCE_S)
    flush = queue.put_flush(PATIENCE_S)
    assert queue.next(0.05) is None
    assert queue.weight == 3
    first.let_go.set()
    first.join(PATIENCE_S)
    assert first.second is flush
    assert queue.weight == 0


def test_all_that_is_in_hand_takes_room() -> None:
    queue = whole_numbers(10)
    for task in (3, 4):
        queue.put(task)
    workers = [Working(queue), Working(queue)]
    assert all(worker.has_one.wait(PATIENCE_S) for worker in workers)
    assert queue.put(4) == [4]
    assert (queue.put(2), queue.put(3)) == ([], [2])
    queue.end()
    for worker in workers:
        worker.let_go.set()
        worker.join(PATIENCE_S)
    assert {worker.second for worker in workers} == {3, None}


def test_flushes_that_nobody_waits_for_do_not_pile_up() -> None:
    queue = whole_numbers(10)
    queue.put(1)
    flushes = [queue.put_flush(0.0) for _ in range(1000)]
    queue.put(2)
    for flush in flushes:
        assert isinstance(flush, Flush)
        assert not flush.wait()
        queue.forget(flush)
    assert len(queue._waiting) == 2
    assert [queue.next(), queue.next(), queue.next(0.0)] == [1, 2, None]
