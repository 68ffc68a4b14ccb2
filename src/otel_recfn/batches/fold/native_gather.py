"""The native twin of gathering rows: one call for all columns of all batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.fold.finished import Places
from otel_recfn.batches.fold.gathered import Columns
from otel_recfn.model.batch import COLUMN_TYPES, Batch

_NAMES = tuple(COLUMN_TYPES)
_TYPES: dict[str, Any] = {name: np.dtype(kind) for name, kind in COLUMN_TYPES.items()}


def gather_natively(batches: Sequence[Batch], part: Places, row: Places) -> Columns:
    """See ``Gathers``."""
    raw: dict[str, Any] = _native.gather_rows(_NAMES, tuple(batches), part, row)
    return {name: np.frombuffer(column, _TYPES[name]) for name, column in raw.items()}
