"""The forward ranges of backward ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RecordScope

NODES_PREFIX = "autograd::engine::evaluate_function: "
"""The words that PyTorch puts before a backward node's name where it names the range around it."""
MOST_WAITING_NODES = 1000
"""The most nodes that wait for the range around them, which ends in a later batch."""

NodeNumbers = dict[int, tuple[int, int]]
"""The sequence number and forward thread of nodes that ended before the range around them, by its event id."""


def with_node_numbers(batch: Batch, waiting: NodeNumbers) -> Batch:
    """The batch with sequence numbers on ``evaluate_function`` ranges, as in torch.profiler's traces. PyTorch gives them to the
    nodes inside, which wait for the range around them."""
    is_node = (
        (batch.scope == RecordScope.BACKWARD_FUNCTION)
        & (batch.sequence_nr != -1)
        & (batch.parent != 0)
    )
    nodes = np.flatnonzero(is_node)
    columns = (batch.parent[nodes], batch.sequence_nr[nodes], batch.forward_thread_id[nodes])
    for parent, number, thread in zip(*[column.tolist() for column in columns], strict=True):
        waiting[parent] = number, thread
    rows = np.flatnonzero(is_in(batch.event_id, list(waiting))) if waiting else ()
    if not len(rows):
        return batch
    sequence_nr, forward_thread_id = batch.sequence_nr.copy(), batch.forward_thread_id.copy()
    for row in rows:
        numbers = waiting.pop(int(batch.event_id[row]))
        if batch.sequence_nr[row] == -1 and batch.names[batch.name[row]].startswith(NODES_PREFIX):
            sequence_nr[row], forward_thread_id[row] = numbers
    for parent in list(waiting)[:-MOST_WAITING_NODES]:
        del waiting[parent]
    return batch.take(slice(None), sequence_nr=sequence_nr, forward_thread_id=forward_thread_id)


class Links(NamedTuple):
    """The backward rows of a batch with their forward ranges, as columns of equal length in row order."""

    row: NDArray[np.int64]
    """The row of the backward range."""
    event_id: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    number: NDArray[np.uint64]
    """The number of the forward range's track."""


_KINDS: tuple[Any, ...] = (np.int64, np.uint64, np.int64, np.uint64)


def find_links(ranges: _native.ForwardRanges, batch: Batch, numbers: NDArray[np.uint64]) -> Links:
    """Remember the batch's forward ranges, then find those of its backward rows, across batches; once per batch.

    Autograd gives each graph node a sequence number that counts up in the thread that makes it, and the operators running at
    that moment carry the number too. The node's backward range carries it again, with the logical id of the thread of the
    forward. Several forward ranges can share a number (``aten::linear`` and the ``aten::t`` inside it; an operator that makes
    no node and the next one that does): the one that started last made the node, because making it moves the number on.

    ``ranges`` are those of earlier batches, ``numbers`` one for each of the batch's tracks, for the links to their ranges.
    """
    thread_ids = np.array([track.thread_id for track in batch.tracks], np.uint64)
    columns: tuple[Any, ...] = ranges.link(batch, thread_ids, numbers)
    return Links(
        *[np.frombuffer(column, kind) for column, kind in zip(columns, _KINDS, strict=True)]
    )
