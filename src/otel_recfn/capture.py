"""A capture: what somebody asked to be recorded, and the sinks that receive it.

sealed batch ──► each sink in turn; one that raises is closed, taken out and logged once

A sink, or a signal handler that interrupts it, may flush, stop and start captures. What that drains for the sink's own capture
waits until all its sinks have what they are being given, and so does the end of the capture.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.protocol import Sink
from otel_recfn.transforms.selection import Selected, Selection

log = logging.getLogger("otel_recfn")
T = TypeVar("T")


class _Removed(NamedTuple):
    counts: dict[str, int]
    rows: int
    """Handed out until then, those that it failed on included."""


class Capture:
    """What is selected, and sinks. Used by one thread at a time (the session sees to that), and for one run.

    Args:
        selected: scopes, extras and sources.
        sinks: receive every sealed batch, in this order.
        buffer_bytes: bound of each recording thread's buffer.
    """

    def __init__(self, selected: Selected, sinks: Iterable[Sink], *, buffer_bytes: int) -> None:
        self.selected = selected
        self.selection = Selection(selected)
        self.buffer_bytes = buffer_bytes
        self._sinks = list(sinks)
        self._removed: dict[str, _Removed] = {}
        self._undelivered: deque[Batch] = deque()
        self._delivering = False
        self._close_by: float | None = None
        self.rows = 0

    def write(self, batch: Batch) -> None:
        """Hand a batch to every sink."""
        self._undelivered.append(batch)
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self._deliver(self._undelivered.popleft())
        finally:
            self._delivering = False
            if self._close_by is not None:
                self._close(self._close_by)

    def _deliver(self, batch: Batch) -> None:
        self.rows += len(batch)
        for sink in list(self._sinks):
            self._guarded(sink, partial(sink.write, batch), None)

    def flush(self, timeout_s: float) -> bool:
        """Flush the sinks that work here, within ``timeout_s`` seconds in all.

        False when that was not enough, or one of the sinks calls.
        """
        return not self._delivering and self._flush(time.monotonic() + timeout_s, background=False)

    def flush_background(self, timeout_s: float) -> bool:
        """Flush the sinks that have threads of their own: from any thread, also while another one writes."""
        return self._flush(time.monotonic() + timeout_s, background=True)

    def _flush(self, deadline: float, background: bool) -> bool:
        sinks = [sink for sink in self._sinks if isinstance(sink, BackgroundSink) == background]
        flushed = [self._guarded(sink, partial(sink.flush, max(0.0, deadline - time.monotonic())), False) for sink in sinks]
        return all(flushed)

    def close(self, timeout_s: float) -> None:
        """Close every sink within ``timeout_s`` seconds in all; where one of them calls, when they have what is drained."""
        deadline = time.monotonic() + timeout_s
        if self._delivering:
            self._close_by = deadline
        else:
            self._close(deadline)

    def _close(self, deadline: float) -> None:
        self._close_by = None
        for sink in list(self._sinks):
            self._guarded(sink, partial(sink.close, max(0.0, deadline - time.monotonic())), None)

    def counters(self) -> dict[str, int]:
        """``rows`` and every sink's counters as ``<sink>.<counter>``; of a removed sink also the rows ``missed`` since."""
        found = {"rows": self.rows}
        for sink in self._sinks:
            found.update(_prefixed(sink.name, self._guarded(sink, partial(_counts, sink), {})))
        for name, removed in self._removed.items():
            found.update(_prefixed(name, {**removed.counts, "missed": self.rows - removed.rows}))
        return found

    def after_fork_in_child(self) -> None:
        """Go on with the sinks that are fit for a forked child; counts begin anew."""
        self.selection = Selection(self.selected)
        self._undelivered, self._delivering, self._close_by = deque(), False, None
        inherited, self._sinks, self._removed, self.rows = self._sinks, [], {}, 0
        for sink in inherited:
            fresh = self._guarded(sink, sink.after_fork_in_child, None)
            if fresh is not None:
                self._sinks.append(fresh)

    def _guarded(self, sink: Sink, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except (Exception, SystemExit) as error:  # a sink can't end the program, or the thread that drains
            unexpected = not isinstance(error, OSError)  # a full disk needs no traceback
            log.error("the sink %r failed and was removed; the others go on: %r", sink.name, error, exc_info=unexpected)
            self._remove(sink)
            return otherwise

    def _remove(self, sink: Sink) -> None:
        if sink not in self._sinks:
            return
        self._sinks.remove(sink)
        try:
            sink.close(0.0)
            counts = dict(sink.counters())
        except (Exception, SystemExit):  # it failed once already, which was logged
            counts = {}
        self._removed[sink.name] = _Removed(counts, self.rows)


def _counts(sink: Sink) -> dict[str, int]:
    return dict(sink.counters())


def _prefixed(name: str, counts: dict[str, int]) -> dict[str, int]:
    return {f"{name}.{key}": value for key, value in counts.items()}
