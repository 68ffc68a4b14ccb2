"""What spans say of the ranges that were folded: which sums stand on which span, and which paths have a span of their own.

All in columns. What is folded directly into a unit whose span can't say so stands on a summary of its
path with the most time. What is left of a unit's budget goes to further summaries, those of the paths with the most time that
took long enough.

A summary is as long as its ranges were together and begins where the first of them began, moved so that it stays within its
parent; where ranges ran beside each other for longer than the parent, it is cut there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.fold.finished import FinishedUnits, Places, Times

TOP_NAMES = 3
"""So many names are told of each span's folded ranges."""


class KeptExtents(NamedTuple):
    """When the kept ranges began and ended: columns."""

    start_ns: Times
    end_ns: Times


class UnitsToTell(NamedTuple):
    """Columns by unit."""

    start_ns: Times
    end_ns: Times
    budget: Places
    """Spans for summaries; a unit that doesn't tell itself has one of them in any case."""
    least_ns: Times
    """Paths that took less together have no summary, but for that one."""
    tells_itself: NDArray[np.uint8]
    """1 where the span above it takes what was folded directly below it."""


class Told(NamedTuple):
    """Three groups of columns: by holder, in the order of their paths; by name of a holder; by summary."""

    unit: Places
    holder: Places
    """As ``FinishedUnits.path_holder``."""
    ranges: Places
    """How many ranges were folded into it."""
    duration_ns: Times
    top_end: Places
    """Where its names end in the next columns; they begin where those of the holder before it end."""
    top_name: NDArray[np.uint32]
    top_count: Places
    top_self_ns: Times
    path: Places
    parent: Places
    """The path whose summary it is a child of; -1: it is a child of its path's holder."""
    start_ns: Times
    end_ns: Times
    sums: Places
    """The holder whose sums it tells; -1 for none. Those that tell some come first."""


_TYPES: dict[str, Any] = {"top_name": np.uint32}
TOLD_TYPES: dict[str, Any] = {name: _TYPES.get(name, np.int64) for name in Told._fields}
_PATH_COLUMNS = (
    *("path_unit", "path_holder", "path_above", "path_name", "path_count", "path_total_ns", "path_self_ns"),
    "path_first_ns",
)


def told_of(done: FinishedUnits, kept: KeptExtents, units: UnitsToTell) -> Told:
    """What is told of units that were finished together; an IndexError where a path indexes nothing."""
    told: Any = _native.tell_folded(tuple(getattr(done, name) for name in _PATH_COLUMNS), tuple(kept), tuple(units), TOP_NAMES)
    return Told(*[np.frombuffer(raw, kind) for raw, kind in zip(told, TOLD_TYPES.values(), strict=True)])
