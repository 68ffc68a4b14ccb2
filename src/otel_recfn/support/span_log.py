"""The begins and ends of the program's spans as a span processor hears of them, for files that show
these spans.

    program's threads                                        drain thread
    began, ended ──► a queue, bounded ──► collect ──► Batch.spans

Times are read by the recorder's clock, so that a span and the ranges of its thread nest in a file
as they did: a span's own times are by the wall clock, and a few microseconds off.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from otel_recfn import _native
from otel_recfn.model.batch import ProgramSpan, Track

SCOPE_NAME = "otel_recfn"
"""The name of our instrumentation scope."""
MAX_WAITING = 1 << 16
"""The most begins and ends that wait to be collected; beyond it the oldest are forgotten."""
MAX_OPEN = 1 << 12
"""The most open spans that are followed; beyond it the oldest are forgotten."""
LONGEST_DELAY_NS = 100_000
"""The longest time after which a begin or end is heard of in time: one that comes later was given
its time by the program, or its thread had to wait meanwhile.
"""
LAST_NS = (1 << 63) - 1
Key = tuple[int, int]


def is_ours(span: object) -> bool:
    """Whether a span is of our instrumentation scope, as a step's, which is a range in files."""
    return getattr(getattr(span, "instrumentation_scope", None), "name", None) == SCOPE_NAME


def _span_key(context: Any) -> Key:
    return context.trace_id, context.span_id


class _Change(NamedTuple):
    """A begin or an end of a span."""

    key: Key
    parent: Key | None
    name: str
    time_ns: int | None
    """By the span itself; None if the program gave it something else."""
    is_end: bool
    native_id: int
    """The thread's."""
    monotonic_ns: int
    heard_ns: int
    """The Unix time at which it was heard of, by the recorder's clock."""
    enclosing: int
    """The event id of the innermost range that was open in the thread; 0 if there was none."""


class _OpenSpan(NamedTuple):
    """A span that hasn't ended."""

    begin: _Change
    span: ProgramSpan


class SpanLog:
    """The log of a process.

    Begins and ends come from any thread; the other methods are for one thread at a time.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        """Whether somebody collects."""
        self._changes: deque[_Change] = deque(maxlen=MAX_WAITING)
        self._open: dict[Key, _OpenSpan] = {}
        """The open spans, in the order of their begins."""
        self._nesting: dict[int, dict[Key, _OpenSpan]] = {}
        """Those that nest in the spans of their thread so far, by its id."""

    def set_wanted(self, wanted: bool) -> None:
        """Log from now on, or no longer."""
        if self.is_wanted != wanted:
            self.is_wanted = wanted
            self.clear()

    def clear(self) -> None:
        """Forget all that was logged, as a forked child does: its parent's spans end there."""
        self._changes.clear()
        self._open, self._nesting = {}, {}

    def began(self, span: Any) -> None:
        """Log the begin of a span of the SDK's, in the thread where it begins."""
        self._log(span, span.start_time, is_end=False)

    def ended(self, span: Any) -> None:
        """Log the end of a span of the SDK's, in the thread where it ends."""
        self._log(span, span.end_time, is_end=True)

    def _log(self, span: Any, time_ns: Any, *, is_end: bool) -> None:
        now = _native.moment()
        key = _span_key(span.context)
        parent = span.parent
        name = span.name if isinstance(span.name, str) and span.name else f"span {key[1]:016x}"
        own_ns = (
            int(time_ns) if isinstance(time_ns, (int, float)) and 0 <= time_ns <= LAST_NS else None
        )
        parent_key = _span_key(parent) if parent is not None else None
        native_id = threading.get_native_id()
        self._changes.append(
            _Change(
                key=key,
                parent=parent_key,
                name=name,
                time_ns=own_ns,
                is_end=is_end,
                native_id=native_id,
                monotonic_ns=now.monotonic_ns,
                heard_ns=now.unix_ns,
                enclosing=now.enclosing,
            )
        )

    def collect(self) -> Sequence[ProgramSpan]:
        """The spans that have begun or ended since the last time, in this order."""
        if not self._changes:
            return ()
        changes = []
        with suppress(IndexError):  # it is cleared meanwhile
            for _ in range(len(self._changes)):
                changes.append(self._changes.popleft())  # noqa: PERF401 - what was taken isn't lost
        threads = {thread.native_id: thread for thread in threading.enumerate()}
        found = []
        for change in changes:
            is_exact = (
                change.time_ns is not None
                and abs(change.heard_ns - change.time_ns) <= LONGEST_DELAY_NS
            )
            time_ns = change.heard_ns if is_exact or change.time_ns is None else change.time_ns
            if not change.is_end:
                # Twice, if one processor of ours takes over from another.
                if change.key in self._open:
                    continue
                found.append(self._begin(change, time_ns, is_exact, threads.get(change.native_id)))
            elif change.key in self._open:
                found.append(self._end(change, time_ns, is_exact))
        return found

    def _begin(
        self, begin: _Change, time_ns: int, is_exact: bool, thread: threading.Thread | None
    ) -> ProgramSpan:
        known = (thread.ident or 0, thread.name) if thread is not None else (0, "")
        span = ProgramSpan(
            *begin.key,
            parent_id=begin.parent[1] if begin.parent is not None else 0,
            name=begin.name,
            thread=Track(0, 0, begin.native_id, *known),
            start_ns=time_ns,
            end_ns=0,
            nests=False,
        )
        opened = _OpenSpan(begin, span)
        nesting = self._nesting.setdefault(begin.native_id, {})
        for other in nesting.keys() - self._ancestors(begin, nesting):
            del nesting[other]  # another task's, which may go on when this one waits
        if is_exact:
            nesting[begin.key] = opened
        if len(self._open) >= MAX_OPEN:
            self._forget(next(iter(self._open)))
        self._open[begin.key] = opened
        return opened.span

    def _ancestors(self, begin: _Change, nesting: dict[Key, _OpenSpan]) -> set[Key]:
        """The open spans that one which begins lies in.

        Its parent may be the span of a range in the innermost one.
        """
        parent_key = begin.parent
        found = set[Key]()
        if parent_key is not None and parent_key not in self._open:
            innermost = next(reversed(nesting), None)
            parent_key = (
                innermost if innermost is not None and innermost[0] == begin.key[0] else None
            )
        while parent_key is not None and parent_key in self._open and parent_key not in found:
            found.add(parent_key)
            parent_key = self._open[parent_key].begin.parent
        return found

    def _end(self, end: _Change, time_ns: int, is_exact: bool) -> ProgramSpan:
        begin, span = self._open[end.key]
        nesting = self._nesting.get(begin.native_id, {})
        has_later_ends = [
            key for key, other in nesting.items() if other.begin.monotonic_ns > begin.monotonic_ns
        ]
        for other in has_later_ends:
            del nesting[other]
        nests = end.key in nesting and not has_later_ends and is_exact
        nests = nests and (begin.native_id, begin.enclosing) == (end.native_id, end.enclosing)
        self._forget(end.key)
        return span._replace(name=end.name, end_ns=max(time_ns, span.start_ns), nests=nests)

    def _forget(self, key: Key) -> None:
        native_id = self._open.pop(key).begin.native_id
        nesting = self._nesting.get(native_id, {})
        nesting.pop(key, None)
        if not nesting:
            self._nesting.pop(native_id, None)


span_log = SpanLog()
"""The process's."""
