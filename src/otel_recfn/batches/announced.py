"""What a batch announces, where that is made of its own rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.announced import OpenedColumns
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import ANNOUNCED_COLUMNS


def announced(batch: Batch, rows: NDArray[np.int64]) -> OpenedColumns:
    """``Batch.opened`` of these rows, which are top-level ranges, in the order of their begins."""
    rows = rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))]
    return OpenedColumns({name: getattr(batch, name)[rows] for name in ANNOUNCED_COLUMNS}, batch.names)
