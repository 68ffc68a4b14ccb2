"""A capture: what somebody asked to be recorded, and the sinks that receive it.

sealed batch ──► what the capture sees of it ──► queue ──► each sink in turn

A sink may record, drain, and start, stop and flush captures while it is written to. What is drained for its own capture
meanwhile waits in the queue, and the capture's end with it, until all sinks have the batch that is being written.

What a sink raises stays here. After a MemoryError it goes on: it misses that batch, which is counted. After anything else it is
closed and called no more. Both are logged once, and nothing is given to it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.model.batch import Batch
from otel_recfn.model.counters import balanced
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.sources.range_spans import ShownRanges
from otel_recfn.support.signal_handlers import calling_out, raised_by_signal_handler
from otel_recfn.support.texts import safe_exception, safe_text

if TYPE_CHECKING:
    from otel_recfn.sinks.spans.sink import SpansSink

log = logging.getLogger("otel_recfn")


class GuardedSink:
    """A sink with the count of what it took, whose methods never raise."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.is_removed = False
        """Whether the sink has raised, and is not called any more."""
        is_ours = type(sink).__module__.startswith("otel_recfn.")
        # A signal handler is the only code that can raise CallRefused inside a sink of ours, which starts and stops nothing.
        self._around: Callable[[], AbstractContextManager[None]] = (
            nullcontext if is_ours else calling_out
        )
        self._rows = 0
        """The rows of the batches that ``write`` took without an error."""
        self._last_counters: dict[str, int] = {}
        self._logged: set[str] = set()

    def write(self, batch: Batch) -> None:
        """Write a batch to the sink."""
        with self.guarded():
            self.sink.write(batch)
            self._rows += len(batch)

    def flush(self, deadline: float) -> bool:
        """Flush the sink; False if it raises, or the time isn't enough."""
        with self.guarded():
            return self.sink.flush(seconds_to(deadline))
        return False

    def counters(self, delivered: int) -> dict[str, int]:
        """The sink's counters as ``<sink>.<counter>``; ``dropped.error`` includes the ``delivered`` rows that it missed."""
        if not self.is_removed:
            with self.guarded(
                "the counters of the sink %r raised; those that it gave last stand for them"
            ):
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
        return GuardedSink(fresh) if fresh is not None else None

    @contextmanager
    def guarded(self, goes_on: str = "") -> Iterator[None]:
        """Guard a call of the sink: an error stays here, and the sink is removed.

        It goes on where ``goes_on`` is the text to log: the call may come from another thread than writes to it.
        """
        try:
            with self._around():
                yield
        except NO_MEMORY:
            self._log_once("the sink %r found no memory; it goes on, and what it misses is counted")
        except (
            Exception,
            SystemExit,
        ) as error:  # a sink can't end the program, or the thread that drains
            if raised_by_signal_handler(error):  # the program's timeout, say: no error of the sink
                raise
            self._log_once(goes_on or "the sink %r failed and was removed; the others go on", error)
            if not (goes_on or self.is_removed):
                self.is_removed = True
                with (
                    suppress(Exception, SystemExit),
                    self._around(),
                ):  # the first error was logged already
                    self.sink.close(0.0)
                    self._last_counters = dict(self.sink.counters())

    def _log_once(self, text: str, error: BaseException | None = None) -> None:
        if text in self._logged:
            return
        self._logged.add(text)
        unexpected = (
            safe_exception(error) if error is not None and not isinstance(error, OSError) else None
        )
        reason = "" if error is None else f": {safe_text(repr(error))}"
        log.error(
            text + "%s", self.sink.name, reason, exc_info=unexpected
        )  # a full disk needs no traceback


class Capture:
    """A selection of what to record, and the sinks that receive it, for one run. The session lets one thread at a time use it.

    Args:
        sinks: receive every sealed batch, in this order.
        buffer_bytes: bound of each recording thread's buffer.
        spans: the sink as whose spans the program sees its ranges while they are current; None for none.
        open_range_s: sinks get ranges that have been open for so long; None: they don't.
        exit_timeout_s: how long the end of the process may wait for what is outside of this machine.
        names_spans: whether a sink names the program's spans around ranges, which are kept alive for it.
    """

    def __init__(
        self,
        selected: Selected,
        sinks: Iterable[Sink],
        *,
        buffer_bytes: int,
        spans: SpansSink | None = None,
        open_range_s: float | None = None,
        exit_timeout_s: float = 2.0,
        names_spans: bool = True,
    ) -> None:
        self.selected = selected
        self.selection = Selection(selected)
        self.spans = spans
        self.shown = _shown_ranges(selected, self.selection, spans) if spans is not None else None
        self.buffer_bytes, self.open_range_s, self.exit_timeout_s = (
            buffer_bytes,
            open_range_s,
            exit_timeout_s,
        )
        self.names_spans = names_spans
        self._reported_open = False
        """Whether the sinks were last told of ranges that are open for long."""
        self.sinks = [GuardedSink(sink) for sink in sinks]
        self._queue: deque[Batch] = deque()
        """The capture's view of each batch that waits."""
        self.is_delivering = False
        """Whether one of its sinks is being written to."""
        self._flushing: set[int] = set()
        """The threads that are flushing."""
        self._failed = False
        self.rows = 0
        """The number of rows that every sink has taken or missed."""
        self.is_used = False
        """Whether its ranges have a use: it was seen to have a tracer provider, or another capture ran beside it."""
        self.has_ended = False
        self.recorder_at_begin: RecorderCounters | None = None
        """The recorder's counters when it began; None until then."""
        self.recorder_at_end: RecorderCounters | None = None
        """The recorder's counters when it had ended."""

    @property
    def wants_unsampled(self) -> bool:
        """Whether one of its sinks has a use for ranges in spans that are not sampled."""
        return any(one.sink.wants_unsampled for one in self._working_sinks)

    @property
    def _working_sinks(self) -> list[GuardedSink]:
        """The sinks that haven't failed."""
        return [one for one in self.sinks if not one.is_removed]

    def put(
        self, batch: Batch, view: Callable[[Batch], Batch] | None = None, look: bool = False
    ) -> None:
        """Queue the capture's view of a batch, as ``view`` makes it; None: that is all of it.

        ``look``: ranges that have been open for long are reported.
        """
        try:
            seen = view(batch) if view is not None else batch
            if not (len(seen) or seen.opened or look) and (self._queue or self.is_delivering):
                return  # only the time of a drain is in it, and a sink that starts captures as it is written to makes many
            open_long = (
                _open_for(seen, self.open_range_s)
                if look and self.open_range_s is not None
                else None
            )
            closed = (
                seen
                if seen.closed == len(seen)
                else seen.take(slice(seen.closed), opened=seen.opened)
            )
            if open_long is not None and (len(open_long) or self._reported_open):
                closed = replace(closed, long_open=open_long)
                self._reported_open = len(open_long) > 0
            self._queue.append(closed)
        except Exception as error:
            self.rows += batch.closed
            if raised_by_signal_handler(error):
                raise
            if not self._failed:
                self._failed = True
                log.exception(
                    "a capture could not read what was recorded; it goes on, and what it misses is counted"
                )

    def deliver(self) -> None:
        """Hand on what waits. What sinks record meanwhile waits for the next time."""
        if self.is_delivering:
            return
        self.is_delivering = True
        try:
            left = len(self._queue)
            while self._queue and left:
                left -= 1
                seen = self._queue.popleft()
                for one in self._working_sinks:
                    one.write(seen)
                self.rows += len(seen)
        finally:
            self.is_delivering = False

    def flush(self, timeout_s: float) -> bool:
        """Flush the sinks within ``timeout_s`` seconds in all, from any thread, also while another one writes.

        False when that was not enough, or one of the sinks calls as it is flushed.
        """
        deadline, own = time.monotonic() + timeout_s, threading.get_ident()
        if own in self._flushing:
            return False
        self._flushing.add(own)
        try:
            flushed = [one.flush(deadline) for one in self._working_sinks]
            return all(flushed)
        finally:
            self._flushing.discard(own)

    def close(self, timeout_s: float) -> None:
        """Close every sink within ``timeout_s`` seconds in all, after what still waits for it."""
        deadline = time.monotonic() + timeout_s
        while self._queue:  # this ends, because it has left the session and its sinks add nothing
            self.deliver()
        for one in self._working_sinks:
            with one.guarded():
                one.sink.close(seconds_to(deadline))

    def counters(self, recorder: RecorderCounters) -> dict[str, int]:
        """Counts of what was recorded for it, and of what became of that; see ``model/counters.py``."""
        sinks: dict[str, int] = {}
        for one in self.sinks:
            sinks |= one.counters(self.rows)
        now = self.recorder_at_end or recorder
        return balanced(self.rows, now.since(self.recorder_at_begin or now), sinks)

    def after_fork_in_child(self) -> None:
        """Go on with the sinks that are fit for a forked child; counts begin anew."""
        self.selection = Selection(self.selected)
        self._queue, self.is_delivering, self._flushing = deque(), False, set()
        self._reported_open = False
        self.rows, self.recorder_at_begin = 0, RecorderCounters()
        self.sinks = [
            fresh for one in self._working_sinks if (fresh := one.after_fork_in_child()) is not None
        ]


def _shown_ranges(selected: Selected, selection: Selection, spans: SpansSink) -> ShownRanges:
    return ShownRanges(
        takes=selected.takes,
        had_begun=selection.has_begun_before,
        has_target=spans.has_target,
        trace_of=spans.trace_of,
        is_outside=spans.is_outside,
        start_step=spans.start_step,
        saw=spans.saw,
    )


def _open_for(batch: Batch, open_range_s: float) -> Batch:
    """The open ranges among a batch's copies that have been open for so long.

    Their own times are compared, which are monotonic: a wall clock that is set changes nothing.
    """
    copies = slice(batch.closed, None)
    is_long = batch.end_ns[copies] - batch.start_ns[copies] >= open_range_s * 1e9
    return batch.take(copies).take(is_long)


def seconds_to(deadline: float) -> float:
    """The seconds from now to a deadline; 0 once it is over."""
    return max(0.0, deadline - time.monotonic())
