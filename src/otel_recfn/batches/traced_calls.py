"""Which rows are traced Python calls."""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.ancestry import Mask
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventKind, EventSource, is_call

OTHERS = tuple(source for source, traits in SOURCES.items() if traits.call_prefix)
"""Sources of which some rows are calls, by their names."""


def traced_calls(batch: Batch) -> Mask:
    """The rows that are Python calls, or a module's inside one."""
    traced = batch.source == EventSource.PYTHON_CALL
    for source in OTHERS:
        inside = (batch.source == source) & (batch.caller != 0)
        for name in set(batch.name[inside].tolist()):
            if is_call(source, batch.names[name]):
                traced |= inside & (batch.name == name)
    return np.asarray(traced & (batch.kind == EventKind.RANGE))
