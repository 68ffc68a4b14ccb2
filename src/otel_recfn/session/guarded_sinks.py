"""The one guard around a capture's sinks: what a sink raises stays here.

After a MemoryError the sink goes on: it misses that batch, which is counted. After anything else it is closed and taken out.
Both are logged once, and nothing is given to it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import (
    NO_MEMORY,
    Sink,
    flushes_beside_writes,
    is_told_of_open_ranges,
    losses_of,
    tell_of_drain,
    tell_of_process_end,
    tells_of_spans,
    wants_unsampled,
)
from otel_recfn.support.calls import calling_out
from otel_recfn.support.safe_text import safe_exception, safe_text

log = logging.getLogger("otel_recfn")
T = TypeVar("T")


@dataclass(eq=False)
class _Guarded:
    """A sink, and what it took."""

    sink: Sink
    rows: int = 0
    """Of the batches that its ``write`` took without an error."""
    without_memory: bool = False
    """It found no memory once, which was logged."""
    is_removed: bool = False
    last_counters: dict[str, int] = field(default_factory=dict)
    """Those that it gave last."""
    told_of_counters: bool = False
    """It gave an error once instead, which was logged."""

    def counters(self) -> dict[str, int]:
        """From any thread, which may be a metric reader's: one that raises stays, as it may be written to at the moment."""
        if not self.is_removed:
            try:
                with _calling(self.sink):
                    self.last_counters = dict(self.sink.counters())
            except (Exception, SystemExit) as error:
                if not self.told_of_counters:
                    self.told_of_counters = True
                    text = "the counters of the sink %r raised; those that it gave last stand for them: %s"
                    log.error(text, self.sink.name, safe_text(repr(error)), exc_info=safe_exception(error))
        return self.last_counters


class GuardedSinks:
    """Sinks that are called one after the other."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = [_Guarded(sink) for sink in sinks]
        self._removed: list[_Guarded] = []

    @property
    def at_work(self) -> list[Sink]:
        """Those that were not taken out."""
        return [guarded.sink for guarded in self._sinks]

    @property
    def wants_unsampled(self) -> bool:
        """Whether one of them has a use for ranges in spans that are not sampled."""
        return any(map(wants_unsampled, self.at_work))

    @property
    def tells_of_spans(self) -> bool:
        """Whether one of them may tell of the program's spans around ranges."""
        return any(map(tells_of_spans, self.at_work))

    def write(self, batch: Batch) -> None:
        """Write a batch to each."""
        for guarded in list(self._sinks):
            self._call(guarded, partial(_write, guarded, batch), None)

    def write_open(self, ranges: Batch) -> None:
        """Tell those that ask which ranges are open for long."""
        for guarded in list(self._sinks):
            if is_told_of_open_ranges(guarded.sink):
                self._call(guarded, partial(guarded.sink.write_open, ranges), None)  # type: ignore[attr-defined]

    def note_drained(self, drained_ns: int, flushes: bool) -> None:
        """Tell those that ask that what had ended by then has been written."""
        for guarded in list(self._sinks):
            self._call(guarded, partial(tell_of_drain, guarded.sink, drained_ns, flushes), None)

    def flush(self, deadline: float, beside_writes: bool) -> bool:
        """Flush those that can be flushed beside a write, or the others."""
        wanted = [guarded for guarded in self._sinks if flushes_beside_writes(guarded.sink) == beside_writes]
        flushed = [self._call(guarded, partial(guarded.sink.flush, _seconds_to(deadline)), False) for guarded in wanted]
        return all(flushed)

    def process_ends(self, timeout_s: float) -> None:
        """Tell each that ``close`` comes because the process ends."""
        for guarded in list(self._sinks):
            self._call(guarded, partial(tell_of_process_end, guarded.sink, timeout_s), None)

    def close(self, deadline: float) -> None:
        """Close each."""
        for guarded in list(self._sinks):
            self._call(guarded, partial(guarded.sink.close, _seconds_to(deadline)), None)

    def counters(self, delivered: int) -> dict[str, int]:
        """Each one's as ``<sink>.<counter>``, with how many of the rows that were ``delivered`` it ``missed``."""
        found: dict[str, int] = {}
        for guarded in [*self._sinks, *self._removed]:
            counts = guarded.counters()
            missed = delivered - guarded.rows
            counts = {**counts, "missed": missed} if missed > 0 else counts
            found.update({f"{guarded.sink.name}.{name}": count for name, count in counts.items()})
        return found

    def losses(self) -> set[str]:
        """Which of the counters say what was lost."""
        sinks = [guarded.sink for guarded in (*self._sinks, *self._removed)]
        return {f"{sink.name}.{name}" for sink in sinks for name in (*losses_of(sink), "missed")}

    def after_fork_in_child(self) -> None:
        """Go on with those that are fit for a forked child."""
        inherited, self._sinks, self._removed = self._sinks, [], []
        for guarded in inherited:
            fresh = self._call(guarded, guarded.sink.after_fork_in_child, None)
            if fresh is not None:
                self._sinks.append(_Guarded(fresh))

    def _call(self, guarded: _Guarded, call: Callable[[], T], otherwise: T) -> T:
        try:
            with _calling(guarded.sink):
                return call()
        except NO_MEMORY:
            if not guarded.without_memory:
                guarded.without_memory = True
                log.error("the sink %r found no memory; it goes on, and what it misses is counted", guarded.sink.name)
        except (Exception, SystemExit) as error:  # a sink can't end the program, or the thread that drains
            unexpected = safe_exception(error) if not isinstance(error, OSError) else None  # a full disk needs no traceback
            text = "the sink %r failed and was removed; the others go on: %s"
            log.error(text, guarded.sink.name, safe_text(repr(error)), exc_info=unexpected)
            self._remove(guarded)
        return otherwise

    def _remove(self, guarded: _Guarded) -> None:
        if guarded not in self._sinks:
            return
        self._sinks.remove(guarded)
        with suppress(Exception, SystemExit), _calling(guarded.sink):  # it failed once already, which was logged
            guarded.sink.close(0.0)
            guarded.last_counters = dict(guarded.sink.counters())
        guarded.is_removed = True
        self._removed.append(guarded)


def _calling(sink: Sink) -> AbstractContextManager[None]:
    """Around a call. Inside a sink of ours, which starts, stops and flushes nothing, only a signal handler can call that."""
    is_ours = type(sink).__module__.startswith("otel_recfn.")
    return nullcontext() if is_ours else calling_out()


def _write(guarded: _Guarded, batch: Batch) -> None:
    guarded.sink.write(batch)
    guarded.rows += len(batch)


def _seconds_to(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
