"""The parents of slices that don't follow from their times, but from what their events say.

    "Parent id"       the range around the slice, which may have run in another thread
    b, "Event id"     an asynchronous range of ours: its parent was open as it began, also if that
                      ended earlier
    "Encloses"        such a range, in which others began

All other slices are nested by their times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct
from otel_recfn.report.nesting import Nested, Slices, put_in_what_was_open, without_spans

MAX_ID = 1 << 62


class ExplicitParents:
    """The rows of a trace whose events say where they are."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        """The event id of the parent, by row; 0 if there is none."""
        self._overlapping: list[int] = []
        """The rows of our asynchronous ranges."""
        self._enclosing: list[int] = []
        """Those of them in which others began."""

    def add(self, args: dict[str, Any], row: int) -> None:
        """Add the parent that the arguments of a slice say, if they do."""
        parent = args.get("Parent id")
        if isinstance(parent, int) and 0 <= parent < MAX_ID:
            self._parents[row] = parent

    def add_async(self, args: dict[str, Any], row: int) -> None:
        """Add an asynchronous range."""
        if "Event id" in args:
            self._overlapping.append(row)
        if args.get("Encloses") is True:
            self._enclosing.append(row)

    def apply(
        self,
        slices: Slices,
        nested: Nested,
        position: NDArray[np.int64],
        event_id: NDArray[np.int64],
        is_span: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Change the nesting by time to what events say, and return which slices have an event
        that says their parent.

        Args:
            slices: those of the trace.
            nested: their nesting by time, which is changed.
            position: the position of each row in the slices.
            event_id: the event id of each of our slices.
            is_span: whether each is a span of the program's.
        """
        encloses = slices.can_enclose.copy()
        encloses[position[self._enclosing]] = True
        for thread in distinct(slices.thread[position[self._overlapping]]).tolist():
            put_in_what_was_open(slices, nested, encloses, thread)
        is_explicit = np.zeros(len(position), np.bool_)
        if self._parents:
            explicit = position[list(self._parents)]
            found = self._found_parents(slices, explicit, event_id)
            # A span of the program's between a range and its parent stays there.
            by_time = without_spans(nested, is_span)[explicit]
            nested.parent[explicit] = np.where(found == by_time, nested.parent[explicit], found)
            is_explicit[explicit] = True
        return is_explicit

    def _found_parents(
        self, slices: Slices, explicit: NDArray[np.int64], event_id: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The slice that has the id of each explicit slice's parent; -1 if there is none.

        A file that isn't ours may say anything. A slice that began later is no parent, so that no
        slice is inside itself.
        """
        parent = np.array(list(self._parents.values()), np.int64)
        in_order = np.argsort(event_id)
        index = np.searchsorted(event_id[in_order], parent)
        found = in_order[np.minimum(index, len(event_id) - 1)]
        began_earlier = slices.start[found] < slices.start[explicit]
        return np.where((event_id[found] == parent) & began_earlier, found, -1)
