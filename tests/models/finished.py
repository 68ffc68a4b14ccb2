"""What folding tells of finished units, in columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]
Times = NDArray[np.int64]
Places = NDArray[np.int64]

SEVERAL = -1


class FinishedUnits(NamedTuple):
    """Units that were finished together, numbered in the order in which they were asked for. Times in nanoseconds.

    One group of columns for the ranges that are kept, outermost first in each unit; one for the paths of the others, each path
    after the one that it lies in.
    """

    kept: Ids
    """Event ids."""
    kept_row: Places
    """The numbers that they were given when they were added."""
    kept_unit: Places
    kept_parent: Ids
    """The kept range that it lies in; 0 where it lies directly in the unit."""
    kept_self_ns: Times
    kept_start_ns: Times
    kept_end_ns: Times
    kept_name: NDArray[np.uint32]
    kept_shown: NDArray[np.uint32]
    kept_modules: NDArray[np.uint32]
    path_unit: Places
    path_holder: Places
    """Which of the kept ranges it was folded into; -1 for the unit itself."""
    path_above: Places
    """The path that it lies in; -1 where it lies directly in the holder."""
    path_name: NDArray[np.uint32]
    path_shown: NDArray[np.uint32]
    path_module: NDArray[np.int64]
    """The number of the path of the module that they are calls of; SEVERAL where it isn't the same."""
    path_modules: NDArray[np.int64]
    """The same, with ``*`` for numbers."""
    path_is_node: NDArray[np.uint8]
    """1 for a backward node in the range around it."""
    path_count: Times
    path_total_ns: Times
    path_self_ns: Times
    path_shortest_ns: Times
    path_longest_ns: Times
    path_cpu_time_ns: Times
    """-1 where it isn't known of each range."""
    path_first_ns: Times
    path_first_id: Ids
    path_first_row: Times
    """-1 where it may be gone."""
    path_in_compilation: Places
    """1 where it has no summary, since what ran there is no span."""


_TYPES: dict[str, Any] = {
    "kept": np.uint64,
    "kept_parent": np.uint64,
    **dict.fromkeys(
        ("kept_name", "kept_shown", "kept_modules", "path_name", "path_shown"), np.uint32
    ),
    "path_is_node": np.uint8,
    "path_first_id": np.uint64,
}
FINISHED_TYPES: dict[str, Any] = {
    name: _TYPES.get(name, np.int64) for name in FinishedUnits._fields
}
