"""Runs a sink on a thread of its own, so that the drain thread never waits for a disk.

    write() ──► bounded queue ──► worker thread ──► inner sink

What doesn't fit the queue is dropped, the newest first, and counted; before the next batch the inner sink is told of it
(``note_gap``), because it missed begins and ends. ``flush`` and ``close`` return when their time is up, whatever the disk does;
what was left then is counted.

A batch for which the inner sink finds no memory is dropped and counted, and the next one comes. Where it raises anything else,
the work ends, and the next ``write`` raises that. In the worker thread ``flush`` and ``close`` don't wait for themselves.

    rows that were written = taken by the inner sink + dropped.queue_full + dropped.error + dropped.shutdown + those that wait
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.own_thread import OwnThread, at_work
from otel_recfn.support.safe_text import safe_exception, safe_text

log = logging.getLogger("otel_recfn")


@runtime_checkable
class ToldOfGaps(Protocol):
    """A sink that has to know where batches didn't come through."""

    def note_gap(self) -> None:
        """Batches were lost between the last and the next."""


@runtime_checkable
class ToldOfDrops(Protocol):
    """A sink that says in what it writes that rows are missing there."""

    def tell_dropped(self, dropped: Callable[[], int]) -> None:
        """``dropped`` gives how many rows never came here. From any thread."""


class _Open(NamedTuple):
    """What the inner sink is told of ranges that are open for long."""

    ranges: Batch


class BackgroundSink(Sink):
    """A sink in front of another that may wait. ``flush`` may be called from any thread, also while another one writes.

    Args:
        sink: the inner sink; used by the worker thread only, but for ``counters``.
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.
        start: whether the thread starts now or with the first batch.
        rows_of_a_batch: what a batch that waits takes beside its rows, in rows.
        close_share: of the time that ``close`` is given, how much it may take: others are closed after it.
    """

    def __init__(
        self, sink: Sink, max_rows: int, *, start: bool = True, rows_of_a_batch: int = 0, close_share: float = 1.0
    ) -> None:
        self.name = sink.name
        self._inner, self._max_rows = sink, max_rows
        self._rows_of_a_batch, self._close_share = rows_of_a_batch, close_share
        self._queue: TaskQueue[Batch | _Open] = TaskQueue(max_rows, self._weigh)
        self._received = self._dropped = self._written = self._unwritten = 0
        """Rows: that were written here, that didn't fit, of the batches that the inner sink took, and for which it found no
        memory. The first two are counted by who writes, the others by the worker."""
        self._gap = False
        """Batches were dropped since the inner sink was told of a gap last."""
        self._close_by = 0.0
        self._error: Exception | SystemExit | None = None
        """What the inner sink raised: the work has ended with it."""
        self._told_error = self._told_of_memory = False
        if isinstance(sink, ToldOfDrops):
            sink.tell_dropped(self._lost)
        self._thread = OwnThread(self._run, f"otel-recfn {self.name}")
        if start:
            self.start()

    def start(self) -> None:
        """Start the thread; else the first batch does."""
        with contextlib.suppress(RuntimeError):  # no more threads here: tried again, and told, with the first batch
            self._thread.start()

    def write(self, batch: Batch) -> None:
        """Queue a batch, or drop it.

        Raises:
            Exception: what the inner sink raised; the session closes a sink that raises.
        """
        if self._error is not None:
            self._told_error = True
            raise self._error
        if not len(batch) and not batch.opened:
            return
        if self._thread.ident is None and self._queue.is_open:
            self._thread.start()
        self._received += len(batch)
        if self._queue.put(batch):
            self._dropped += len(batch)
            self._gap = True

    def write_open(self, ranges: Batch) -> None:
        """Queue what an inner sink is told of open ranges, unless others wait: it is told of all that are left later."""
        if self._thread.ident is not None and not self._queue.has_one_of(_Open):
            self._queue.put(_Open(ranges))

    def _weigh(self, task: Batch | _Open) -> int:
        return 0 if isinstance(task, _Open) else self._rows_of_a_batch + len(task) + len(task.opened)

    def flush(self, timeout_s: float) -> bool:
        """Let the inner sink finish what is queued, and flush; False when the time wasn't enough."""
        if self._thread is threading.current_thread():
            return False
        flush = self._queue.put_flush(timeout_s) if self._thread.ident is not None else None
        return flush.wait() if flush is not None else self._error is None and self._left() == 0

    def close(self, timeout_s: float) -> None:
        """Finish, or give up after ``timeout_s`` seconds and leave the daemon thread to its disk."""
        self._close_by = time.monotonic() + self._close_share * timeout_s
        was_open = self._queue.is_open
        self._queue.end()
        if self._thread is threading.current_thread():
            return
        if self._thread.ident is None and was_open:
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        self._thread.wait_for_end(self._time_left())
        self._queue.clear()
        self._tell_error()

    def _time_left(self) -> float:
        return max(0.0, self._close_by - time.monotonic())

    def _run(self) -> None:
        """In the thread: until closed, or the inner sink raises."""
        with suppress_instrumentation():
            try:
                while not self._queue.has_ended:
                    self._do_next()
            except BaseException as error:  # of a file that exits, say: the program, whose thread this isn't, goes on
                self._error = _ordinary(error)
                self._queue.end()
                self._queue.clear()
            with at_work():
                self._close_inner()

    def _do_next(self) -> None:
        try:
            task = self._queue.next()
            with at_work():
                self._do(task)
        except NO_MEMORY:
            if not self._told_of_memory:
                self._told_of_memory = True
                log.exception("the sink %r found no memory; it goes on, and what it misses is counted as dropped", self.name)

    def _do(self, task: Batch | _Open | Flush | None) -> None:
        if isinstance(task, Flush):
            task.do(self._inner.flush)
        elif isinstance(task, _Open):
            self._inner.write_open(task.ranges)
        elif task is not None:
            self._do_write(task)

    def _do_write(self, batch: Batch) -> None:
        try:
            self._write(batch)
        except NO_MEMORY:
            self._unwritten += len(batch)
            self._gap = True
            raise

    def _write(self, batch: Batch) -> None:
        gap, self._gap = self._gap, False
        if gap and isinstance(self._inner, ToldOfGaps):
            self._inner.note_gap()
        self._inner.write(batch)
        self._written += len(batch)

    def _close_inner(self) -> None:
        """In the time that is left; what the inner sink has not written by then it counts."""
        try:
            self._inner.close(self._time_left())
        except BaseException as error:
            self._error = self._error or _ordinary(error)

    def _tell_error(self) -> None:
        """Of the inner sink, where no write came after it that could have raised it."""
        error = self._error
        if error is not None and not self._told_error:
            self._told_error = True
            unexpected = safe_exception(error) if not isinstance(error, OSError) else None  # a full disk needs no traceback
            text = "the sink %r failed, and what it had not taken is lost: %s"
            log.error(text, self.name, safe_text(repr(error)), exc_info=unexpected)

    def wants_unsampled(self) -> bool:
        """As the inner sink."""
        return self._inner.wants_unsampled()

    def counters(self) -> Mapping[str, int]:
        """What the inner sink lost, and what never reached it."""
        inner, left = self._inner.counters(), 0 if self._queue.is_open else self._left()
        errors = inner.get("dropped.error", 0) + self._unwritten
        return {
            **inner,
            "dropped.queue_full": self._dropped,
            "dropped.shutdown": left if self._error is None else 0,
            "dropped.error": errors if self._error is None else errors + left,
        }

    def after_fork_in_child(self) -> Sink | None:
        """The same around the inner sink's successor; its thread starts with its first batch.

        This one is over; another thread may have held its lock.
        """
        self._queue = TaskQueue(self._max_rows, self._weigh)
        self._queue.end()
        inner = self._inner.after_fork_in_child()
        if inner is None:
            return None
        return BackgroundSink(
            inner,
            self._max_rows,
            start=False,
            rows_of_a_batch=self._rows_of_a_batch,
            close_share=self._close_share,
        )

    def _left(self) -> int:
        """Rows that the inner sink hasn't taken."""
        return max(0, self._received - self._lost() - self._written)

    def _lost(self) -> int:
        """Rows that the inner sink will never take."""
        return self._dropped + self._unwritten


def _ordinary(error: BaseException) -> Exception | SystemExit:
    """The error, or what tells of it and can be raised in other threads without ending them."""
    if isinstance(error, (Exception, SystemExit)):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
