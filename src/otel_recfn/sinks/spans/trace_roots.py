"""The roots of the traces that we start. Each is decided once, by the first of two:

    the program's thread   asks for the current span inside a range; a span that it opens there
                           belongs to the range's trace
    the sink               sees the range begin, a drain later

A trace is known by the event id of its first range, which the drain finds for both
(``native/drain/training_steps.hpp``). No thread waits for a sampler that another thread has called.
If both call it, the first answer counts.

The program asks inside a range that is open. So the sink reports the traces that it refuses only if
the program may still ask about them: the last one of each thread, and those in which a range is
open.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import is_in
from otel_recfn.sinks.spans.span_target import RootStart
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.recent_entries import remember

MAX_REMEMBERED = 1 << 15
"""The most traces, and the most outermost ranges, that are remembered."""
Ids = NDArray[np.uint64]
Value = TypeVar("Value")
LiveTrace = tuple[int, int, int]
"""A trace that the program may ask about: the first and the last event id of its outermost ranges
until now, and the one by which it is known.
"""


class TraceRoots:
    """The decisions about the newest traces. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._firsts: dict[int, int] = {}
        """The first range of the trace of each outermost range that the program has asked about."""
        self._live: Sequence[LiveTrace] = ()
        """The traces of the sink's, in ascending order."""
        self._starts: dict[int, RootStart | None] = {}
        """The decision for each trace, by its first range."""
        self._unseen_firsts: dict[int, int] = {}
        """Those of ``_firsts`` whose ranges the sink hasn't seen."""
        self._unseen_starts: dict[int, None] = {}
        """The traces with a decision that the sink hasn't seen."""
        self._asking = threading.local()

    def first_range(self, root: int, first: int) -> int:
        """The first range of an outermost range's trace: ``first``, unless another one is known."""
        with self._lock:
            known = self.known_first_range(root)
            if known is not None:
                return known
            remember(self._firsts, root, first, MAX_REMEMBERED)
            remember(self._unseen_firsts, root, first, MAX_REMEMBERED)
            return first

    def known_first_range(self, root: int) -> int | None:
        """The first range of an outermost range's trace; None if nobody knows it yet."""
        known = self._firsts.get(root)
        if known is not None:
            return known
        live = self._live
        index = bisect_right(live, root, key=itemgetter(0)) - 1
        if index < 0:
            return None
        _, newest, first = live[index]
        return first if root <= newest else None

    def decide(self, first: int, start: Callable[[], RootStart | None]) -> RootStart | None:
        """The root of a trace, started by ``start`` if nobody has decided yet; None if there is
        none.

        A sampler that asks for the current span comes by here again, from inside ``start``: for it
        there is none yet.
        """
        with self._lock:
            if first in self._starts:
                return self._starts[first]
        if getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            started = start()
        finally:
            self._asking.now = False
        with self._lock:
            if first not in self._starts:
                remember(self._starts, first, started, MAX_REMEMBERED)
                remember(self._unseen_starts, first, None, MAX_REMEMBERED)
            return self._starts[first]

    def asked(self) -> list[tuple[int, int]]:
        """The outermost ranges that the program has asked about and the sink hasn't seen, in
        ascending order, each with the first range of its trace.
        """
        with self._lock:
            return sorted(self._unseen_firsts.items())

    def are_decided(self, firsts: Ids) -> NDArray[np.bool_]:
        """Which of these traces, which the sink sees begin, the program has decided."""
        with self._lock:
            return is_in(firsts, list(self._unseen_starts))

    def note_batch(self, opened: Ids, firsts: Ids, live: Sequence[LiveTrace]) -> None:
        """Note what the sink has seen.

        Args:
            opened: outermost ranges that have begun.
            firsts: the traces that have begun.
            live: the traces that the program may ask about, in ascending order.
        """
        with self._lock:
            self._live = live
            _forget_all(self._unseen_firsts, opened)
            _forget_all(self._unseen_starts, firsts)


def _forget_all(values: dict[int, Value], ids: Ids) -> None:
    """Remove the entries of these ids, which are many, from a few."""
    known = np.fromiter(values, np.uint64, len(values))
    for one in known[is_in(known, ids)].tolist() if len(known) else ():
        del values[one]
