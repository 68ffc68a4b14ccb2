"""The sink of a Chrome trace: a bounded queue, and a thread that writes, so that nobody else waits
for a disk.

    write() ──► queue ──► file thread ──► TraceWriter

The thread wakes up each second, since someone may have deleted the file.

What doesn't fit the queue is dropped, the oldest first, and counted. ``flush`` and ``close`` return
when their time is up, whatever the disk does.

    rows that came = written + dropped.queue_full + dropped.error + dropped.shutdown + those that
    wait
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import ROW_BYTES
from otel_recfn.sinks.chrome.writer import TraceWriter
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.forks import OwnThread, at_work
from otel_recfn.support.logs import log

BATCH_ROWS = 64
"""The size of a batch beside its rows, in rows."""
CHECK_SECONDS = 1.0
"""The longest time after which it is noticed that the file was deleted or overwritten."""
OPEN_SECONDS = 0.75
"""The number of seconds after which the file has an open range: with the quarter of it between two
looks, the file of a program that is killed in a hang has what hung a second before.
"""
CLOSE_SHARE = 0.5
"""The share of the time for the end that the file gets.

The spans' backend has the rest if a disk hangs.
"""


class ChromeTraceSink(Sink):
    """A sink with a file behind a queue.

    Args:
        writer: used by the file thread only.
        queue_bytes: how much may wait in the queue.
        recorder_lost: counts the rows that came to no sink, which the file lacks, too.
    """

    name = "chrome_trace"
    open_range_s = OPEN_SECONDS

    def __init__(
        self,
        writer: TraceWriter,
        queue_bytes: int,
        recorder_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        self._writer, self._queue_bytes = writer, queue_bytes
        self._recorder_lost = recorder_lost
        self._lost_before = recorder_lost()
        self._queue: TaskQueue[Batch] = TaskQueue(max(1, queue_bytes // ROW_BYTES), _rows)
        self._received = self._dropped = self._written = self._unwritten = 0
        """Counts of rows: that came, that didn't fit, that the writer took or counted, and for
        which there was no memory.
        """
        self._error: Exception | None = None
        """The error of the writer, which has ended the work."""
        self._raised_error = self._logged_memory = False
        self._thread = OwnThread(self._run, f"otel-recfn {self.name}")

    def start(self) -> None:
        """Start the thread, which the first batch does otherwise."""
        # No thread can be started: the first batch tries again, and logs it.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def write(self, batch: Batch) -> None:
        """Queue a batch, or drop it.

        Raises:
            Exception: what the writer raised; the session closes a sink that raises.
        """
        self._raise_error()
        has_events = batch.opened or batch.steps or batch.spans or batch.samples
        if not (len(batch) or has_events or batch.long_open is not None):
            return
        if self._thread.ident is None and self._queue.is_open:
            self._thread.start()
        dropped = self._queue.put(batch)
        self._received += len(batch)
        self._dropped += sum(map(len, dropped))

    def flush(self, timeout_s: float) -> bool:
        """Wait until what is queued is written; False if the time wasn't enough."""
        if self._thread.is_current:
            return False
        flush = self._queue.put_flush(timeout_s) if self._thread.ident is not None else None
        if flush is not None:
            return self._queue.wait_for(flush)
        return self._error is None and self._remaining_rows() == 0

    def close(self, timeout_s: float) -> None:
        """Finish the file, or stop waiting after half of the time and leave the daemon thread to
        its disk.

        Raises:
            Exception: as ``write``, unless that has raised it.
        """
        was_open = self._queue.is_open
        self._queue.end()
        if self._thread.ident is None and was_open:
            self._writer.close()  # nothing was ever written, so there is nothing to wait for
        self._thread.wait_for_end(CLOSE_SHARE * timeout_s)
        if not self._thread.is_current:
            self._queue.clear()
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise the writer's error, once, for the session to log it."""
        if self._error is not None and not self._raised_error:
            self._raised_error = True
            raise self._error

    def _run(self) -> None:
        with suppress_instrumentation():
            try:
                while not self._queue.has_ended:
                    self._do_next()
            except Exception as error:
                self._error = error
                self._queue.end()
                self._queue.clear()
            with at_work():
                self._close_writer()

    def _do_next(self) -> None:
        try:
            task = self._queue.next(CHECK_SECONDS)
            with at_work():
                if isinstance(task, Flush):
                    task.do(lambda _timeout_s: True)
                elif task is not None:
                    self._write(task)
                else:
                    self._writer.check()
        except NO_MEMORY:
            if not self._logged_memory:
                self._logged_memory = True
                log.exception(
                    "there was no memory to write a Chrome trace; what it misses is counted as"
                    " dropped"
                )

    def _write(self, batch: Batch) -> None:
        try:
            self._writer.write(batch)
        except NO_MEMORY:
            self._unwritten += len(batch)
            raise
        self._written += len(batch)

    def _close_writer(self) -> None:
        try:
            lost_before_it_came = self._recorder_lost() - self._lost_before
            self._writer.close(self._dropped + self._unwritten + max(0, lost_before_it_came))
        except Exception as error:
            self._error = self._error or error

    def counters(self) -> Mapping[str, int]:
        """The counts of what couldn't be written, and of what never reached the writer."""
        remaining = 0 if self._queue.is_open else self._remaining_rows()
        errors = self._writer.failed + self._unwritten
        return {
            "dropped.queue_full": self._dropped,
            "dropped.shutdown": remaining if self._error is None else 0,
            "dropped.error": errors if self._error is None else errors + remaining,
        }

    def after_fork_in_child(self) -> ChromeTraceSink:
        """A sink with a file of its own, whose thread starts with its first batch.

        This one is over; another thread may have held its lock.
        """
        self._queue = TaskQueue(1, _rows)
        self._queue.end()
        writer = self._writer.after_fork_in_child()
        return ChromeTraceSink(writer, self._queue_bytes, self._recorder_lost)

    def _remaining_rows(self) -> int:
        """The number of rows that the writer hasn't taken."""
        return max(0, self._received - self._dropped - self._unwritten - self._written)


def _rows(batch: Batch) -> int:
    """The size of a batch in rows."""
    long_open = len(batch.long_open) if batch.long_open is not None else 0
    open_calls = len(batch.open_calls.event_id) if batch.open_calls is not None else 0
    events = len(batch.opened) + len(batch.spans) + len(batch.samples)
    return BATCH_ROWS + len(batch) + events + long_open + open_calls
