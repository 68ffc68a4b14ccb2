"""What a recorder is told and tells, and the sizes of its buffers: without the native part.

A trace state of W3C is a text of any length, and few programs have one. In the ring a context has words of fixed meaning; the
upper half of its flags is free, and holds the number of the trace state. A drain replaces the number by the text.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from otel_recfn.support.forks import ForkSafeLock

DEFAULT_BUFFER_BYTES = 8 << 20
"""Per recording thread. 8 MiB hold 170,000 operators of 48 bytes each."""
PROFILE_BUFFER_BYTES = 256 << 20
"""The same for captures that are to have every range: taken in larger and larger parts, where the drain comes late."""


class ContextReading(NamedTuple):
    """What the context reader saw in the calling thread."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits, and those that ``Recorder.keep_trace_state`` gave."""
    enclosing: int = 0
    """Event id of the range whose span is the current one; 0 where the current span is the program's own."""
    root: int = 0
    """Event id of the outermost range around ``enclosing``."""
    span: object = None
    """The current span itself: the object that ``span_attached`` was given."""


class RecorderCounters(NamedTuple):
    """Of begins, marks and memory reports, since the process began (since the fork, in a forked child)."""

    dropped: int = 0
    """Those that were not recorded, because the thread's buffer was full or its ranges nested too deep; nor were their ends."""
    lost_ends: int = 0
    """Ends on another thread that found their queue full; such a range is sealed as partial when its capture ends."""
    lost_in_drain: int = 0
    """Recorded, and given up: there was no memory for them in a drain, or the next recording began before their last drain."""
    unsampled: int = 0
    """Those that were not recorded, because nobody wanted what lies in the current span (see ``Recorder.start``)."""

    def since(self, before: RecorderCounters) -> dict[str, int]:
        """What came since then, by the names of ``model/counters.py``."""
        more = RecorderCounters(*[now - then for now, then in zip(self, before, strict=True)])
        return {
            "unsampled": more.unsampled,
            "dropped.buffer_full": more.dropped,
            "dropped.error": more.lost_in_drain,
            "incomplete": more.lost_ends,
        }


MAX_TRACE_STATES = 10_000
"""Beyond it the trace state that was unused for longest is forgotten: ranges in its context then have none."""
_SHIFT = 32
FLAGS = (1 << _SHIFT) - 1
"""All of them: a number beyond has a trace state."""


class TraceStates:
    """A recorder's trace states. From any thread; a forked child goes on with its parent's."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._numbers: dict[str, int] = {}
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._next = count(1)

    def keep(self, text: str) -> int:
        """The trace state as bits for the flags of a context; none for an empty one."""
        if not text:
            return 0
        with self._lock:
            number = self._numbers.get(text)
            if number is None:
                number = self._numbers[text] = next(self._next)
            self._texts[number] = text
            self._texts.move_to_end(number)
            if len(self._texts) > MAX_TRACE_STATES:
                _, forgotten = self._texts.popitem(last=False)
                self._numbers.pop(forgotten, None)
            return number << _SHIFT

    def split(self, flags: int) -> tuple[int, str]:
        """The ContextFlag bits, and the trace state that was kept in the others."""
        number = flags >> _SHIFT
        with self._lock:
            text = self._texts.get(number, "")
            if text:
                self._texts.move_to_end(number)
        return flags & FLAGS, text
