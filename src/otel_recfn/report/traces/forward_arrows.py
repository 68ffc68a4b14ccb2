"""The arrows of a trace from forward operators to backward nodes, which say what launched a node.

    main thread   ──[ aten::mm ]────────[ run_backward, waits            ]───
                         └ s ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┐
    autograd's    ───────────────────────────f[ MmBackward0 ]────────────────

The arrow begins in the thread that called the backward pass. What was open there as the node began
waits for the node, so that this is its parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct
from otel_recfn.report.nesting import Nested, Slices, in_thread, open_at
from otel_recfn.report.traces.threads import TraceThreads

ARROWS = "fwdbwd"
"""The category of these arrows."""


class ForwardArrows:
    """The arrows of a trace."""

    def __init__(self) -> None:
        self._forward: dict[str, int] = {}
        """The threads in which arrows begin, by the arrows' ids."""
        self._backward: list[tuple[int, int, str]] = []
        """The thread and time of the end of each arrow, and its id."""

    def begin(self, thread: int, arrow_id: Any) -> None:
        """Add the begin of an arrow, in the thread of a forward operator."""
        self._forward[str(arrow_id)] = thread

    def end(self, thread: int, ns: int, arrow_id: Any) -> None:
        """Add the end of an arrow, in the thread of a backward node."""
        self._backward.append((thread, ns, str(arrow_id)))

    def put_nodes_where_launched(
        self,
        slices: Slices,
        nested: Nested,
        threads: TraceThreads,
        may_move: NDArray[np.bool_],
    ) -> None:
        """Change the nesting: outermost nodes of autograd's threads get as parent the slice that
        was open in the thread of their forward operators.

        A node without an arrow, which adds up gradients, goes where the one before it goes.

        Args:
            slices: those of the trace.
            nested: their nesting, which is changed.
            threads: those of the trace; Python has no names for autograd's.
            may_move: which slices are nodes of which no event says the parent.
        """
        launched: dict[int, list[NDArray[np.int64]]] = {}
        for thread, times, forward in self._by_thread(threads):
            part = in_thread(slices, thread)
            nodes = part.start + np.flatnonzero(may_move[part] & (nested.parent[part] < 0))
            last_arrow = np.searchsorted(times, slices.start[nodes], side="right") - 1
            launchers = forward[np.maximum(last_arrow, 0)]
            for launcher in distinct(launchers).tolist():
                launched.setdefault(launcher, []).append(nodes[launchers == launcher])
        for launcher, parts in launched.items():
            nodes = np.concatenate(parts)
            nested.parent[nodes] = open_at(slices, nested, launcher, slices.start[nodes])

    def _by_thread(
        self, threads: TraceThreads
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Each of autograd's threads in which arrows from other threads end, with their times and
        the threads in which they begin.
        """
        unknown = threads.unknown_to_python()
        arrows: dict[int, list[tuple[int, int]]] = {}
        for thread, ns, arrow_id in self._backward:
            forward = self._forward.get(arrow_id, thread)
            if forward != thread and thread in unknown:
                arrows.setdefault(thread, []).append((ns, forward))
        for thread, ends in arrows.items():
            times, forward_threads = np.array(sorted(ends), np.int64).T
            yield thread, times, forward_threads
