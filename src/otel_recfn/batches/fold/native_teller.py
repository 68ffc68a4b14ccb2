"""The native twin of telling what was folded."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.fold.finished import FinishedUnits
from otel_recfn.batches.fold.told import TOLD_TYPES, TOP_NAMES, KeptExtents, Told, UnitsToTell

_PATH_COLUMNS = (
    *("path_unit", "path_holder", "path_above", "path_name", "path_count", "path_total_ns", "path_self_ns"),
    "path_first_ns",
)


def tell_natively(done: FinishedUnits, kept: KeptExtents, units: UnitsToTell) -> Told:
    """See ``Tells``."""
    told: Any = _native.tell_folded(
        tuple([getattr(done, name) for name in _PATH_COLUMNS]), tuple(kept), tuple(units), TOP_NAMES
    )
    return Told(*[np.frombuffer(raw, kind) for raw, kind in zip(told, TOLD_TYPES.values(), strict=True)])
