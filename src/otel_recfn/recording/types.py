"""The values that go into and come out of a recorder, and the sizes of its buffers.

The native part isn't needed here.

A trace state of W3C is a text of any length, and few programs have one. In the ring a context has
words of fixed meaning; the upper half of its flags is free, and holds the number of the trace
state. A drain replaces the number by the text.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from otel_recfn.support.forks import ForkSafeLock

DEFAULT_BUFFER_BYTES = 8 << 20
"""The buffer of a recording thread. 8 MiB hold 170,000 operators of 48 bytes each."""
PROFILE_BUFFER_BYTES = 256 << 20
"""The buffer for captures that are to have every range, taken in larger and larger parts if the
drain comes late.
"""


class ContextReading(NamedTuple):
    """The current context of the calling thread, as the context reader saw it."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits, and those of ``TraceStates.keep``."""
    enclosing: int = 0
    """The event id of the range whose span is the current one; 0 if the current span is the
    program's own.
    """
    root: int = 0
    """The event id of the outermost range around ``enclosing``."""
    span: object = None
    """The current span itself, by which its entry in the task's chain is found."""


class RecorderCounters(NamedTuple):
    """Counts of begins, marks and memory reports since the process began (since the fork, in a
    forked child).
    """

    dropped: int = 0
    """Begins without a record: the thread's buffer was full, or its ranges nested too deep.

    Nor have their ends one.
    """
    lost_ends: int = 0
    """Ends on another thread that found their queue full; such a range is sealed as partial when
    its capture ends.
    """
    lost_in_drain: int = 0
    """Recorded rows that were lost: no memory for them in a drain, or the next recording began
    before their last drain.
    """
    unsampled: int = 0
    """Begins without a record, because nobody wanted what is below the current span (see
    ``Recorder.start``).
    """

    def since(self, before: RecorderCounters) -> dict[str, int]:
        """The counts since then, by the names of ``model/counters.py``."""
        more = RecorderCounters(*[now - then for now, then in zip(self, before, strict=True)])
        return {
            "unsampled": more.unsampled,
            "dropped.buffer_full": more.dropped,
            "dropped.error": more.lost_in_drain,
            "incomplete": more.lost_ends,
        }


MAX_TRACE_STATES = 10_000
"""The trace states that are kept; beyond it the one unused for longest is forgotten, and ranges
in its context have none.
"""
_SHIFT = 32
FLAGS = (1 << _SHIFT) - 1
"""All flags: a number beyond has a trace state."""


class TraceStates:
    """The trace states of the process.

    Methods may be called from any thread; a forked child goes on with its parent's.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._numbers: dict[str, int] = {}
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._next = count(1)

    def keep(self, text: str) -> int:
        """The trace state as bits for the flags of a context; 0 for an empty one."""
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


trace_states = TraceStates()
