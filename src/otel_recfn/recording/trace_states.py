"""Numbers for W3C trace states, so that a trace state fits into the flags of a context.

A trace state is a text of any length, and few programs have one. In the ring a context has words of fixed meaning; the upper
half of its flags is free, and holds the number of the trace state. A drain replaces the number by the text.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count

from otel_recfn.support.forks import ForkSafeLock

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
        return self._number(text) << _SHIFT if text else 0

    def _number(self, text: str) -> int:
        with self._lock:
            number = self._numbers.get(text)
            if number is None:
                number = self._numbers[text] = next(self._next)
            self._texts[number] = text
            self._texts.move_to_end(number)
            if len(self._texts) > MAX_TRACE_STATES:
                _, forgotten = self._texts.popitem(last=False)
                self._numbers.pop(forgotten, None)
            return number

    def split(self, flags: int) -> tuple[int, str]:
        """The ContextFlag bits, and the trace state that was kept in the others."""
        number = flags >> _SHIFT
        return (flags & FLAGS, self._text(number)) if number else (flags, "")

    def _text(self, number: int) -> str:
        with self._lock:
            text = self._texts.get(number, "")
            if text:
                self._texts.move_to_end(number)
            return text
