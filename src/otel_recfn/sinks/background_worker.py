"""What the thread of a background sink does: it hands the inner sink what is queued, flushes it when asked, and closes it.

It works no more than the pace lets it. Where there is no memory for a piece of work, that is done again a little later; but an
inner sink that doesn't ask for room (``has_room``) misses the batch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY, PAUSE_SECONDS
from otel_recfn.sinks.background_pace import GivenUp, Pace
from otel_recfn.sinks.background_queue import Close, Flush, Task, WorkQueue, Write, WriteOpen
from otel_recfn.sinks.paced import PacedSink, ToldOfGaps
from otel_recfn.sinks.protocol import Sink, asks_for_room, has_room, tell_of_drain
from otel_recfn.support.insisting import insist
from otel_recfn.support.own_thread import at_work
from otel_recfn.support.thread_time import ThreadTime

log = logging.getLogger("otel_recfn")

PAUSE_WITHOUT_MEMORY_S = 0.1


class Worker:
    """``run`` in the thread; ``release`` and ``supersede`` in the closing thread; ``inner_rows`` in any.

    Args:
        inner: the inner sink.
        queue: what there is to do.
        pace: called after each piece of work.
    """

    def __init__(self, inner: Sink, queue: WorkQueue, pace: Pace) -> None:
        self._inner, self._queue, self._pace = inner, queue, pace
        self._task: Task | None = None
        """Taken from the queue, and not by the inner sink."""
        self._left: list[Batch] = []
        """What was queued when the work ended."""
        self._written = 0
        self._time = ThreadTime()
        self._asks_for_room = asks_for_room(inner)
        self._logged = self._superseded = self._starved = False
        self.error: Exception | SystemExit | None = None
        """What the inner sink raised: the work has ended with it."""
        self._paced = inner if isinstance(inner, PacedSink) else None
        if self._paced is not None:
            self._paced.set_pace(pace)
            self._paced.set_backlog(queue.has_batch)
            self._paced.set_dropped(partial(getattr, queue, "dropped"), partial(getattr, queue, "dropped_at"))

    def run(self) -> None:
        """Until the queue says close, the time is over, or the inner sink raises."""
        self._time.begin()
        with suppress_instrumentation():
            given_up = False
            try:
                self._work_on()
            except GivenUp:
                given_up = True
            except BaseException as error:  # of an exporter that exits, say: the program, whose thread this isn't, goes on
                self.error = _ordinary(error)
                self._pace.end_now()
            with at_work():
                self._end_inner(given_up)
            self._queue.over = True
            with contextlib.suppress(*OUT_OF_MEMORY):  # who came meanwhile waits as long as he wanted to
                self.release()

    def release(self) -> list[Batch]:
        """Nobody will do what is still queued: let those who wait for a flush know. Returns the batches."""
        queued = self._queue.release()
        left = [self._task, *queued]
        self._task = None
        for task in left:
            if isinstance(task, Flush):
                task.set_done()
        return [task.batch for task in left if isinstance(task, Write)]

    def supersede(self) -> bool:
        """Finish in its place, if it waits for an exporter: see ``PacedSink.supersede``."""
        return self._paced is not None and self._paced.supersede(self._superseding)

    @property
    def gives_up(self) -> bool:
        """Whether it writes, after the time is over, what must not be missing."""
        return self._paced is not None

    def worked_s(self) -> float:
        """How much processor time it has had."""
        return self._time.seconds()

    @property
    def is_superseded(self) -> bool:
        """Whether another thread has finished in its place."""
        return self._superseded

    def is_hopeless(self) -> bool:
        """Whether it need not be waited for where the process ends."""
        return self._paced is not None and self._paced.is_hopeless()

    def inner_rows(self) -> int:
        """How many rows the inner sink has taken; where it doesn't count them itself, those of whole batches."""
        return self._inner.counters().get("rows", self._written)

    def _superseding(self) -> list[Batch]:
        self._superseded = True
        return self._release_at_last()

    def _work_on(self) -> None:
        """Work, also after there was no memory for something: it is done again a little later, until the time is over."""
        while True:
            try:
                if self._starved:
                    self._pace()
                    time.sleep(PAUSE_WITHOUT_MEMORY_S)
                    self._starved = False
                return self._work()
            except OUT_OF_MEMORY:
                self._starved = True

    def _work(self) -> None:
        """Do what is queued until told to close."""
        while True:
            if self._task is None:
                self._task = self._queue.next()
            if isinstance(self._task, Close):
                return
            with at_work():
                self._do(self._task)
            self._pace()

    def _do(self, task: Task) -> None:
        if isinstance(task, Write):
            self._do_write(task)
        elif isinstance(task, WriteOpen):
            task.taken, self._task = True, None
            self._inner.write_open(task.ranges)  # type: ignore[attr-defined]
        elif isinstance(task, Flush):
            self._do_flush(task)
        else:
            self._task = None
            if self._paced is not None and self._paced.idle():
                self._queue.rest_again()

    def _do_flush(self, task: Flush) -> None:
        try:
            self._task = None
            tell_of_drain(self._inner, task.drained_ns)
            task.flushed = self._inner.flush(max(0.0, task.deadline - time.monotonic()))
        finally:
            task.set_done()

    def _do_write(self, task: Write) -> None:
        """Where there is no memory for all of it, an inner sink that doesn't ask for room goes on with the next batch.

        Raises:
            MemoryError: there was none before the inner sink had it. It is still the task.
        """
        rows_before, written, missed = self.inner_rows(), self._written + len(task.batch), 0
        if task.after_gap and isinstance(self._inner, ToldOfGaps):
            self._inner.note_gap()
            task.after_gap = False
        if not has_room(self._inner):
            raise MemoryError
        try:
            self._task = None
            self._inner.write(task.batch)
            self._written = written
        except OUT_OF_MEMORY:
            if self._asks_for_room:
                self._task = task
                raise
            missed = len(task.batch) - (self.inner_rows() - rows_before)
            self._log_once("the sink %r found no memory for a batch, which is counted as dropped", self._inner.name)
        finally:
            if self._task is None:
                self._has_written(task, missed)

    def _has_written(self, task: Write, missed: int) -> None:
        while True:
            try:
                return self._queue.written(task, missed)
            except OUT_OF_MEMORY:
                time.sleep(PAUSE_WITHOUT_MEMORY_S)

    def _log_once(self, message: str, *arguments: object) -> None:
        if not self._logged:
            self._logged = True
            log.error(message, *arguments)

    def _release_at_last(self) -> list[Batch]:
        """As ``release``, once there is memory, or the time is over."""
        while True:
            try:
                return self.release()
            except OUT_OF_MEMORY:
                if not self._pace.time_left():
                    return []
                time.sleep(PAUSE_WITHOUT_MEMORY_S)

    def _end_inner(self, given_up: bool) -> None:
        """Close the inner sink, in the time that is left, which was not enough for all where it is ``given_up``."""
        try:
            if self._superseded and self._paced is not None:
                self._paced.finish_superseded()
                return
            self._left = self._release_at_last()
            if (given_up or self._left) and self._paced is not None:
                with contextlib.suppress(*OUT_OF_MEMORY):  # what it hasn't taken counts as abandoned
                    insist(Worker._give_up, self)
            self._close_inner()
        except GivenUp:  # while it waited for an exporter
            if self._paced is not None:
                self._paced.finish_superseded()
        except BaseException as error:
            self.error = self.error or _ordinary(error)

    def _give_up(self) -> None:
        if self._paced is not None:
            self._paced.give_up(self._left, self._pace.time_left())

    def _close_inner(self) -> None:
        """Close the inner sink; where the time ends meanwhile, it gives up what it had not written by then."""
        try:
            insist(Worker._close_in_time, self, PAUSE_SECONDS)  # else its file would be left
        except GivenUp:
            if self._superseded or self._paced is None:
                raise
            insist(Worker._give_up, self)
            self._inner.close(0.0)

    def _close_in_time(self) -> None:
        self._inner.close(self._pace.time_left())


def _ordinary(error: BaseException) -> Exception | SystemExit:
    """The error, or what tells of it and can be raised in other threads without ending them."""
    if isinstance(error, (Exception, SystemExit)):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
