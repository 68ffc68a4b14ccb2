"""A capture's sink behind the one guard: what it raises stays here.

After a MemoryError the sink goes on: it misses that batch, which is counted. After anything else it is closed and called no
more. Both are logged once, and nothing is given to it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import NO_MEMORY, Sink, is_told_of_open_ranges
from otel_recfn.support.calls import calling_out
from otel_recfn.support.safe_text import safe_exception, safe_text

log = logging.getLogger("otel_recfn")


class GuardedSink:
    """A sink, and what it took. No method raises. What the sink has beyond the protocol is looked for once, here."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.is_removed = False
        """It raised, and is to be called no more."""
        self.flushes_beside_writes = bool(getattr(sink, "flushes_beside_writes", False))
        """Whether it may be flushed while it is written to."""
        self._note_drained: Callable[[int, bool], object] | None = getattr(sink, "note_drained", None)
        self._process_ends: Callable[[float], object] | None = getattr(sink, "process_ends", None)
        is_ours = type(sink).__module__.startswith("otel_recfn.")
        # Inside a sink of ours, which starts, stops and flushes nothing, only a signal handler can call that.
        self._around: Callable[[], AbstractContextManager[None]] = nullcontext if is_ours else calling_out
        self._rows = 0
        """Of the batches that its ``write`` took without an error."""
        self._last_counters: dict[str, int] = {}
        self._told_of_memory = self._told_of_counters = False

    def write(self, batch: Batch) -> None:
        """Write a batch."""
        with self._guarded():
            self.sink.write(batch)
            self._rows += len(batch)

    def write_open(self, ranges: Batch) -> None:
        """Tell it, if it asks, which ranges are open for long."""
        if is_told_of_open_ranges(self.sink):
            with self._guarded():
                self.sink.write_open(ranges)  # type: ignore[attr-defined]

    def note_drained(self, drained_ns: int, flushes: bool) -> None:
        """Tell it, if it asks, that what had ended by then has been written, and whether a flush follows."""
        if self._note_drained is not None:
            with self._guarded():
                self._note_drained(drained_ns, flushes)

    def flush(self, deadline: float) -> bool:
        """False where it raises, or the time isn't enough."""
        with self._guarded():
            return self.sink.flush(_seconds_to(deadline))
        return False

    def process_ends(self, timeout_s: float) -> None:
        """Tell it, if it asks, that ``close`` comes because the process ends."""
        if self._process_ends is not None:
            with self._guarded():
                self._process_ends(timeout_s)

    def close(self, deadline: float) -> None:
        """Close it."""
        with self._guarded():
            self.sink.close(_seconds_to(deadline))

    def counters(self, delivered: int) -> dict[str, int]:
        """Its own as ``<sink>.<counter>``, with how many of the rows that were ``delivered`` it ``missed``.

        From any thread, which may be a metric reader's: one that raises stays, as it may be written to at the moment.
        """
        if not self.is_removed:
            try:
                with self._around():
                    self._last_counters = dict(self.sink.counters())
            except (Exception, SystemExit) as error:
                self._tell_of_counters(error)
        missed = delivered - self._rows
        counts = {**self._last_counters, "missed": missed} if missed > 0 else self._last_counters
        return {f"{self.sink.name}.{name}": count for name, count in counts.items()}

    def losses(self) -> set[str]:
        """Which of the counters say what was lost."""
        return {f"{self.sink.name}.{name}" for name in (*getattr(self.sink, "losses", ()), "missed")}

    def after_fork_in_child(self) -> GuardedSink | None:
        """The one that a forked child goes on with; None for none."""
        fresh = None
        with self._guarded():
            fresh = self.sink.after_fork_in_child()
        return GuardedSink(fresh) if fresh is not None else None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self._around():
                yield
        except NO_MEMORY:
            if not self._told_of_memory:
                self._told_of_memory = True
                log.error("the sink %r found no memory; it goes on, and what it misses is counted", self.sink.name)
        except (Exception, SystemExit) as error:  # a sink can't end the program, or the thread that drains
            unexpected = safe_exception(error) if not isinstance(error, OSError) else None  # a full disk needs no traceback
            text = "the sink %r failed and was removed; the others go on: %s"
            log.error(text, self.sink.name, safe_text(repr(error)), exc_info=unexpected)
            self._remove()

    def _remove(self) -> None:
        if self.is_removed:
            return
        self.is_removed = True
        with suppress(Exception, SystemExit), self._around():  # it failed once already, which was logged
            self.sink.close(0.0)
            self._last_counters = dict(self.sink.counters())

    def _tell_of_counters(self, error: BaseException) -> None:
        if not self._told_of_counters:
            self._told_of_counters = True
            text = "the counters of the sink %r raised; those that it gave last stand for them: %s"
            log.error(text, self.sink.name, safe_text(repr(error)), exc_info=safe_exception(error))


def _seconds_to(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
