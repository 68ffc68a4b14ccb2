"""Memory as counter tracks, one a device: what was allocated and not freed since the trace began."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind
from otel_recfn.sinks.chrome.encoder import encode_counter


class MemoryTotals:
    """Bytes by device; replaced, never changed."""

    def __init__(self, totals: Mapping[str, int] = MappingProxyType({})) -> None:
        self._totals = totals

    def after(self, batch: Batch, pid: int, base_ns: int) -> tuple[MemoryTotals, bytes]:
        """The totals after a batch, and events that say how they came about."""
        rows = np.flatnonzero(batch.kind == EventKind.MEMORY)
        if not len(rows):
            return self, b""
        totals, chunks = dict(self._totals), []
        rows = rows[np.argsort(batch.start_ns[rows], kind="stable")]
        for index in distinct(batch.device[rows]).tolist():
            own, device = rows[batch.device[rows] == index], batch.names[index]
            sums = totals.get(device, 0) + np.cumsum(batch.nbytes[own])
            chunks.append(encode_counter(f"memory {device}", "bytes", batch.start_ns[own], sums, pid, base_ns))
            totals[device] = int(sums[-1])
        return MemoryTotals(totals), b"".join(chunks)
