"""A guard around a sink: the one place where a sink's exceptions are caught.

    MemoryError         the sink misses that batch, which is counted, and continues
    anything else       the sink is closed, and is no longer called
    a signal handler's  the program's own, raised on

Each is logged once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from otel_recfn.model.batch import Batch
from otel_recfn.session.deadlines import seconds_to
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.support.interruptions import ignoring_errors, raised_by_signal_handler
from otel_recfn.support.logs import log
from otel_recfn.support.safe_texts import safe_exception, safe_repr
from otel_recfn.support.signal_handlers import calling_out

CHECKS = 4
"""The number of looks for open ranges within the time after which one is reported."""


class GuardedSink:
    """A sink with the count of what it took, whose methods never raise.

    Args:
        sink: the sink.
        open_range_s: the capture's, for sinks without one of their own; None: no sink gets open
            ranges.
    """

    def __init__(self, sink: Sink, open_range_s: float | None = None) -> None:
        self.sink = sink
        self._capture_open_range_s = open_range_s
        self._open_range_s = math.inf
        """The number of seconds after which an open range is reported to the sink."""
        if open_range_s is not None:
            own = sink.open_range_s
            self._open_range_s = open_range_s if own is None else min(own, open_range_s)
        self._checked_s = 0.0
        """When open ranges were last looked for, as ``time.monotonic()``."""
        self._reported_open = False
        """Whether the last report had ranges."""
        self.is_removed = False
        """Whether the sink has raised, and is no longer called."""
        is_ours = type(sink).__module__.startswith("otel_recfn.")
        # A signal handler is the only code that can raise CallRefused inside a sink of ours, which
        # starts and stops nothing.
        self._error_context: Callable[[], AbstractContextManager[None]] = (
            nullcontext if is_ours else calling_out
        )
        self._rows = 0
        """The rows of the batches that ``write`` took without an error."""
        self._last_counters: dict[str, int] = {}
        self._logged: set[str] = set()

    def write(self, batch: Batch, long_open: Batch | None = None) -> None:
        """Write a batch to the sink, with the ranges that are reported as open for long."""
        with self.guarded():
            with_report = batch if long_open is None else replace(batch, long_open=long_open)
            self.sink.write(with_report)
            self._rows += len(batch)

    def begin_checks(self, now_s: float) -> None:
        """Look for open ranges for the first time a while after this moment."""
        self._checked_s = now_s

    def is_check_due(self, now_s: float) -> bool:
        """Whether it is time to look for ranges that are open for long."""
        return not self.is_removed and now_s - self._checked_s >= self._open_range_s / CHECKS

    def open_report(self, copies: Batch, now_s: float) -> Batch | None:
        """The ranges that have been open for long, of these copies of open ranges; None if nothing
        is to be reported now.

        After a report the sink hears once that there are none any more.
        """
        if not self.is_check_due(now_s):
            return None
        self._checked_s = now_s
        # Their own times are compared, which are monotonic: a wall clock that is set changes
        # nothing.
        long_ns = int(self._open_range_s * 1e9)
        found = copies.take(copies.end_ns - copies.start_ns >= long_ns)
        had_some = self._reported_open
        self._reported_open = len(found) > 0
        return found if had_some or self._reported_open else None

    def flush(self, deadline: float) -> bool:
        """Flush the sink; False if it raises, or the time isn't enough."""
        with self.guarded():
            return self.sink.flush(seconds_to(deadline))
        return False

    @property
    def wants_unsampled(self) -> bool:
        """Whether the sink has a use for ranges in spans that are not sampled; True if it
        raises.
        """
        with self.guarded():
            return self.sink.wants_unsampled
        return True

    def counters(self, delivered: int) -> dict[str, int]:
        """The sink's counters as ``<sink>.<counter>``; ``dropped.error`` includes the
        ``delivered`` rows that it missed.
        """
        if not self.is_removed:
            with self.guarded("the sink %r failed in counters(); its previous values are reported"):
                self._last_counters = dict(self.sink.counters())
        counts = dict(self._last_counters)
        if missed := max(0, delivered - self._rows):
            counts["dropped.error"] = counts.get("dropped.error", 0) + missed
            if "recorded" in counts:
                counts["recorded"] += missed
        return {f"{self.sink.name}.{name}": count for name, count in counts.items()}

    def after_fork_in_child(self) -> GuardedSink | None:
        """The sink that a forked child uses in place of this one; None for none."""
        fresh = None
        with self.guarded():
            fresh = self.sink.after_fork_in_child()
        if fresh is None:
            return None
        guarded = GuardedSink(fresh, self._capture_open_range_s)
        guarded.begin_checks(self._checked_s)
        return guarded

    @contextmanager
    def guarded(self, message: str = "") -> Iterator[None]:
        """Guard a call of the sink: an error stays here, and the sink is removed.

        With a ``message``, the text to log, the sink is not removed: such a call may come from
        another thread than the one that writes to it.
        """
        try:
            with self._error_context():
                yield
        except NO_MEMORY:
            self._log_once("the sink %r found no memory; it goes on, and what it misses is counted")
        except BaseException as error:  # a sink can't end the program, or the thread that drains
            if raised_by_signal_handler(error):  # the program's timeout, say: no error of the sink
                raise
            self._log_once(message or "the sink %r failed and was removed; the others go on", error)
            if not (message or self.is_removed):
                self.is_removed = True
                with ignoring_errors(), self._error_context():  # the first error was logged already
                    self.sink.close(0.0)
                    self._last_counters = dict(self.sink.counters())

    def _log_once(self, text: str, error: BaseException | None = None) -> None:
        if text in self._logged:
            return
        self._logged.add(text)
        unexpected = None
        if error is not None and not isinstance(error, OSError):  # a full disk needs no traceback
            unexpected = safe_exception(error)
        reason = "" if error is None else f": {safe_repr(error)}"
        log.error(text + "%s", self.sink.name, reason, exc_info=unexpected)
