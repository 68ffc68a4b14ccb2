"""What a task is in, for the Python twin: its open ranges and the spans it made current, in the order in which they began.

    task's context ──► innermost TaskEntry ──outer──► TaskEntry ──outer──► ...      the value of one ContextVar

A ContextVar gives each asyncio task, greenlet and thread a chain of its own, and a child task (or ``asyncio.to_thread``) the
chain of its parent as it was at the launch. A range that ended out of order, or elsewhere, stays in the chains that have it and
is skipped from then on; so is a span that is no longer current.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from otel_recfn.model.events import EventFlag
from otel_recfn.recording.protocol import ContextReading

_innermost: ContextVar[TaskEntry | None] = ContextVar("otel_recfn_task", default=None)
_serials = itertools.count(1)
SHORTEN_EVERY = MOST_SPANS = 64
SHOWN = int(EventFlag.SHOWN)
_LOW_64 = (1 << 64) - 1


def next_serial() -> int:
    """The number of the next entry: entries are numbered in the order in which they are made."""
    return next(_serials)


class TaskEntry:
    """A range, or a span that was made current. Implements ``protocol.TaskRange``.

    Args:
        span: what was made current; None for a range.
        token: identifies the token by which it is detached.
        range_: the range's own entry, for one that is entered again.
    """

    __slots__ = (
        "_range",
        "_shown",
        "context",
        "ended",
        "event_id",
        "length",
        "outer",
        "recording",
        "root",
        "scope",
        "serial",
        "source",
        "span",
        "token",
    )

    def __init__(
        self,
        recording: Recording,
        *,
        event_id: int = 0,
        root: int = 0,
        context: ContextReading | None = None,
        scope: int = 0,
        source: int = 0,
        span: object = None,
        token: int = 0,
        range_: TaskEntry | None = None,
    ) -> None:
        self.event_id, self.root, self.context, self.scope, self.source = event_id, root, context, scope, source
        self.recording, self.span, self.token, self._range = recording, span, token, range_
        self.serial = next_serial()
        self.outer: TaskEntry | None = None
        self.length = 0
        self.ended = False
        self._shown: Any = None

    def again(self) -> TaskEntry:
        """An entry for the same range, which ends with it at the latest."""
        return TaskEntry(
            self.recording,
            event_id=self.event_id,
            root=self.root,
            context=self.context,
            scope=self.scope,
            source=self.source,
            range_=self,
        )

    @property
    def context_words(self) -> tuple[int, int, int, int]:
        """See TaskRange.context_words."""
        context = self.context
        if context is None:
            return (0, 0, 0, 0)
        return (context.trace_id >> 64, context.trace_id & _LOW_64, context.span_id, context.flags)

    @property
    def began(self) -> int:
        """See TaskRange.began."""
        return (self._range or self).serial

    @property
    def shown(self) -> Any:
        """See TaskRange.shown; the same in every entry of the range."""
        return (self._range or self)._shown

    @shown.setter
    def shown(self, shown: Any) -> None:
        (self._range or self)._shown = shown

    @property
    def is_current(self) -> bool:
        """See TaskRange.is_current."""
        return self.recording.is_current

    @property
    def has_ended(self) -> bool:
        """Whether this entry, or its range, has ended."""
        return self.ended or (self._range is not None and self._range.ended)


class Recording:
    """What was recorded since one start: its open ranges, and the chains, in which it skips ranges of earlier recordings."""

    def __init__(self) -> None:
        self.is_current = True
        self._open: dict[int, TaskEntry] = {}

    def begun(self, entry: TaskEntry, enters: bool) -> None:
        """A range is open from here on; the task is in it if it ``enters``."""
        self._open[entry.event_id] = entry
        if enters:
            self.push(entry)

    def ended(self, event_id: int) -> int:
        """The range is over. Returns EventFlag bits of its end."""
        entry = self._open.get(event_id)
        if entry is None:
            return 0
        flags = SHOWN if entry.shown is not None else 0
        self.end(entry)
        self._open.pop(event_id, None)  # last, because an interrupted call is repeated
        return flags

    def enter(self, event_id: int) -> TaskEntry | None:
        """See Recorder.enter."""
        own = self._open.get(event_id)
        newest = self.innermost()
        if own is None:
            return None
        if newest is not None and newest.serial > own.serial:
            return self._reenter(own)
        entered = own.again()
        self.push(entered)
        return entered

    def _reenter(self, range_: TaskEntry) -> TaskEntry | None:
        """Reopen the entry of the range that the calling task left; what the task began in it and has not ended stays inside.

        None if there is no such entry.
        """
        entry = self.innermost()
        while entry is not None and entry.serial > range_.serial and entry._range is not range_:
            entry = entry.outer
        if entry is None or entry._range is not range_ or not entry.ended:
            return None
        entry.ended = False
        return entry

    def innermost(self) -> TaskEntry | None:
        """The newest entry of the calling task that has not ended."""
        return self._living(_innermost.get())

    def push(self, entry: TaskEntry) -> None:
        """The calling task enters it."""
        entry.outer = outer = self.innermost()
        entry.length = outer.length + 1 if outer is not None else 1
        if entry.length % SHORTEN_EVERY == 0:
            entry.length = self._shorten(entry)
        _innermost.set(entry)

    def _shorten(self, entry: TaskEntry) -> int:
        """Remove entries that have ended, and all but the newest spans. Returns how long the chain is then.

        It would grow without end where tasks launch tasks, which inherit chains, or spans are attached and never detached.
        """
        length, spans = 1, 0
        while True:
            outer = self._living(entry.outer)
            while outer is not None and outer.span is not None:
                spans += 1
                if spans <= MOST_SPANS:
                    break
                outer = self._living(outer.outer)
            entry.outer = outer
            if outer is None:
                return length
            entry, length = outer, length + 1

    def end(self, entry: TaskEntry) -> None:
        """The range is over, in every task that has it. Its entry stays in the chains, and is skipped."""
        entry.ended, entry._shown = True, None

    def pop(self, entry: TaskEntry) -> None:
        """The calling task has detached the span of that entry."""
        if self.innermost() is entry:
            _innermost.set(self._living(entry.outer))

    def entries(self) -> Iterator[TaskEntry]:
        """The calling task's entries that have not ended, innermost first."""
        entry = self.innermost()
        while entry is not None:
            yield entry
            entry = self._living(entry.outer)

    def ranges_after(self, span: object) -> tuple[TaskEntry, ...]:
        """See Recorder.ranges_after."""
        found = []
        for entry in self.entries():
            if entry.span is None:
                found.append(entry)
            elif entry.span is span:
                break
        return tuple(found)

    def latest(self, span: object) -> TaskEntry | None:
        """The first of ``ranges_after``; the entry of ``span`` where there is none."""
        entry = self.innermost()
        while entry is not None and entry.span is not None and entry.span is not span:
            entry = self._living(entry.outer)
        return entry

    def find_attached(self, token: int) -> TaskEntry | None:
        """The newest span that was made current with that token."""
        for entry in self.entries():
            if entry.token == token:
                return entry
        return None

    def _living(self, entry: TaskEntry | None) -> TaskEntry | None:
        while entry is not None and (entry.has_ended or (entry.span is None and entry.recording is not self)):
            entry = entry.outer
        return entry
