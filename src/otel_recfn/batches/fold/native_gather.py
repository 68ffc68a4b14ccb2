"""The native twin of gathering rows: one call for all columns of all batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.fold.finished import Places
from otel_recfn.batches.fold.gathered import Columns, ColumnTypes


def gather_natively(types: ColumnTypes, parts: Sequence[object], part: Places, row: Places) -> Columns:
    """See ``Gathers``."""
    raw: dict[str, Any] = _native.gather_rows(tuple(types), tuple(parts), part, row)
    return {name: np.frombuffer(raw[name], kind) for name, kind in types.items()}
