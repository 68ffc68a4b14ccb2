"""Sequence numbers on ``evaluate_function`` ranges, as in torch.profiler's traces: PyTorch gives them to the nodes inside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RecordScope

PREFIX = "autograd::engine::evaluate_function: "
MOST_WAITING = 1000
"""So many nodes wait for the range around them, which ends in a later batch."""


class NodeNumbers:
    """Of the nodes that have ended before the range around them; replaced, never changed."""

    def __init__(self, waiting: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> None:
        self._waiting = waiting
        """By event id of the range around: sequence number, thread of the forward operator."""

    def after(self, batch: Batch) -> tuple[NodeNumbers, Batch]:
        """What waits after a batch, and the batch with the numbers of the nodes on the ranges around them."""
        is_node = (batch.scope == RecordScope.BACKWARD_FUNCTION) & (batch.sequence_nr != -1) & (batch.parent != 0)
        nodes = np.flatnonzero(is_node)
        if not len(nodes) and not self._waiting:
            return self, batch
        found = dict(self._waiting)
        columns = (batch.parent[nodes], batch.sequence_nr[nodes], batch.forward_thread_id[nodes])
        for parent, sequence_nr, forward in zip(*[column.tolist() for column in columns], strict=True):
            found[parent] = sequence_nr, forward
        rows = np.flatnonzero(is_in(batch.event_id, list(found)))
        sequence_nr, forward_thread_id = batch.sequence_nr.copy(), batch.forward_thread_id.copy()
        for row in rows.tolist():
            numbers = found.pop(int(batch.event_id[row]))
            if batch.sequence_nr[row] == -1 and batch.names[batch.name[row]].startswith(PREFIX):
                sequence_nr[row], forward_thread_id[row] = numbers
        waiting = dict(list(found.items())[-MOST_WAITING:])
        shown = batch.take(slice(None), sequence_nr=sequence_nr, forward_thread_id=forward_thread_id) if len(rows) else batch
        return NodeNumbers(waiting), shown
