"""The sinks of a capture: one that raises is closed, taken out and logged once, but goes on after a MemoryError."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY, PAUSE_SECONDS
from otel_recfn.sinks.protocol import (
    Sink,
    asks_for_room,
    flushes_beside_writes,
    has_room,
    is_told_of_open_ranges,
    losses_of,
    tell_of_drain,
    tell_of_process_end,
    tells_of_spans,
    wants_unsampled,
)
from otel_recfn.support.safe_text import safe_exception, safe_text

log = logging.getLogger("otel_recfn")
T = TypeVar("T")


@dataclass(eq=False)
class _Handed:
    """A sink, and what it took."""

    sink: Sink
    last: object = None
    """What its ``write`` was called with last."""
    rows: int = 0
    """Of the batches that its ``write`` took without an error."""
    without_memory: bool = False
    """It missed a batch for want of memory, which was logged."""
    asks_for_room: bool = False
    closed: bool = False


class GuardedSinks:
    """What a sink raises stays here."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = [_Handed(sink, asks_for_room=asks_for_room(sink)) for sink in sinks]
        self._removed: list[tuple[_Handed, dict[str, int]]] = []
        """With their last counters."""

    @property
    def at_work(self) -> list[Sink]:
        """Those that were not taken out."""
        return [handed.sink for handed in self._sinks]

    @property
    def removed(self) -> list[Sink]:
        """Those that were."""
        return [handed.sink for handed, _ in self._removed]

    @property
    def wants_unsampled(self) -> bool:
        """Whether one of them has a use for ranges in spans that are not sampled."""
        return any([wants_unsampled(handed.sink) for handed in self._sinks])

    @property
    def tells_of_spans(self) -> bool:
        """Whether one of them may tell of the program's spans around ranges."""
        return any([tells_of_spans(handed.sink) for handed in self._sinks])

    def write(self, due: object, seen: Batch, may_wait: Callable[[], bool]) -> None:
        """Write what is ``due``, as it is ``seen``, to those that have not got it.

        One that has no room is passed over while ``may_wait()``.

        Raises:
            MemoryError: it waits for one of them.
        """
        for handed in list(self._sinks):
            if handed.last is not due and self._has_room(handed, may_wait):
                self._guarded(handed, partial(_write, handed, due, seen), None)
        for handed in self._sinks:
            if handed.last is not due:
                raise MemoryError

    def forget_what_is_done(self) -> None:
        """All have got what was due: it refers to its batch, and that of a capture's end to the capture, which is a cycle."""
        for handed in self._sinks:
            handed.last = None

    def _has_room(self, handed: _Handed, may_wait: Callable[[], bool]) -> bool:
        return not (handed.asks_for_room and may_wait()) or self._guarded(handed, partial(has_room, handed.sink), False)

    def write_open(self, ranges: Batch) -> None:
        """Tell those that ask which ranges are open for long."""
        for handed in list(self._sinks):
            if is_told_of_open_ranges(handed.sink):
                self._guarded(handed, partial(_write_open, handed.sink, ranges), None)

    def note_drained(self, drained_ns: int) -> None:
        """Tell those that ask that what had ended by then has been written."""
        for handed in list(self._sinks):
            self._guarded(handed, partial(tell_of_drain, handed.sink, drained_ns), None)

    def flush(self, deadline: float, beside_writes: bool) -> bool:
        """Flush those that can be flushed beside a write, or the others."""
        wanted = [handed for handed in self._sinks if flushes_beside_writes(handed.sink) == beside_writes]
        flushed = [
            self._guarded(handed, partial(handed.sink.flush, max(0.0, deadline - time.monotonic())), False) for handed in wanted
        ]
        return all(flushed)

    def process_ends(self, timeout_s: float) -> None:
        """Tell each that ``close`` comes because the process ends."""
        for handed in list(self._sinks):
            self._guarded(handed, partial(tell_of_process_end, handed.sink, timeout_s), None)

    def close(self, deadline: float) -> None:
        """Close each."""
        for handed in list(self._sinks):
            self._close_sink(handed, deadline)

    def _close_sink(self, handed: _Handed, deadline: float) -> None:
        """Also where some of the allocations for it fail: its thread and its file would be left."""
        failed = 0
        while not handed.closed and failed < ATTEMPTS and handed in self._sinks:
            if failed:
                time.sleep(PAUSE_SECONDS)
            self._guarded(handed, partial(_close, handed, deadline), None)
            failed += 1

    def counters(self, delivered: int) -> dict[str, int]:
        """Each one's as ``<sink>.<counter>``, with how many of the rows that were ``delivered`` it ``missed``."""
        found: dict[str, int] = {}
        for handed in list(self._sinks):
            nothing: dict[str, int] = {}
            counts = self._guarded(handed, partial(_counts, handed.sink), nothing)
            found.update(_with_missed(handed, counts, delivered))
        for handed, counts in self._removed:
            found.update(_with_missed(handed, counts, delivered))
        return found

    def losses(self) -> set[str]:
        """Which of the counters say what was lost."""
        sinks = [handed.sink for handed in (*self._sinks, *[handed for handed, _ in self._removed])]
        return {f"{sink.name}.{name}" for sink in sinks for name in (*losses_of(sink), "missed")}

    def after_fork_in_child(self) -> None:
        """Go on with those that are fit for a forked child."""
        inherited, self._sinks, self._removed = self._sinks, [], []
        for handed in inherited:
            fresh = self._guarded(handed, handed.sink.after_fork_in_child, None)
            if fresh is not None:
                self._sinks.append(_Handed(fresh, asks_for_room=asks_for_room(fresh)))

    def _guarded(self, handed: _Handed, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except OUT_OF_MEMORY:
            if not handed.without_memory:
                handed.without_memory = True
                log.error("the sink %r found no memory; it goes on, and what it misses is counted", handed.sink.name)
            return otherwise
        except (Exception, SystemExit) as error:  # a sink can't end the program, or the thread that drains
            unexpected = safe_exception(error) if not isinstance(error, OSError) else None  # a full disk needs no traceback
            text = "the sink %r failed and was removed; the others go on: %s"
            log.error(text, handed.sink.name, safe_text(repr(error)), exc_info=unexpected)
            self._remove(handed)
            return otherwise

    def _remove(self, handed: _Handed) -> None:
        if handed not in self._sinks:
            return
        self._sinks.remove(handed)
        counts: dict[str, int] = {}
        with suppress(Exception, SystemExit):  # it failed once already, which was logged
            handed.sink.close(0.0)
            counts = _counts(handed.sink)
        self._removed.append((handed, counts))


def _write(handed: _Handed, due: object, seen: Batch) -> None:
    rows = handed.rows + len(seen)
    handed.last = due
    try:
        handed.sink.write(seen)
    except OUT_OF_MEMORY:
        if handed.asks_for_room:
            handed.last = None
        raise
    handed.rows = rows


def _write_open(sink: Sink, ranges: Batch) -> None:
    with suppress(*OUT_OF_MEMORY):  # nothing is lost: the next look has them all again
        sink.write_open(ranges)  # type: ignore[attr-defined]


def _close(handed: _Handed, deadline: float) -> None:
    handed.sink.close(max(0.0, deadline - time.monotonic()))
    handed.closed = True


def _counts(sink: Sink) -> dict[str, int]:
    return dict(sink.counters())


def _prefixed(name: str, counts: dict[str, int]) -> dict[str, int]:
    return {f"{name}.{key}": value for key, value in counts.items()}


def _with_missed(handed: _Handed, counts: dict[str, int], delivered: int) -> dict[str, int]:
    missed = delivered - handed.rows
    return _prefixed(handed.sink.name, {**counts, "missed": missed} if missed > 0 else counts)
