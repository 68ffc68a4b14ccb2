"""From a backward range to its forward range, across batches.

Forward and backward: autograd gives each graph node a sequence number that counts up in the thread that makes it, and the
operators running at that moment carry the number too. The node's backward range carries it again, with the logical id of the
thread of the forward. Several forward ranges can share a number (``aten::linear`` and the ``aten::t`` inside it; an operator
that makes no node and the next one that does): the one that started last made the node, because making it moves the number on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.distinct import Distinct
from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch, SpanContextRef, Track
from otel_recfn.model.events import ORDINAL_BITS, ORDINAL_MASK, EventKind
from otel_recfn.model.scope import RecordScope

MAX_FORWARD_RANGES = 1_000_000
"""How many forward ranges wait for a backward: 48 bytes each, many steps of a large model."""

NEVER = np.iinfo(np.int64).min
LINK_COLUMNS: dict[str, Any] = {
    "event_id": np.uint64,
    "root": np.uint64,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.uint32,
    "context": np.uint32,
}
_NO_ROWS = np.zeros(0, np.int64)
_NO_LINKS: list[NDArray[Any]] = [np.zeros(0, kind) for kind in LINK_COLUMNS.values()]
_RANGE, _BACKWARD = int(EventKind.RANGE), int(RecordScope.BACKWARD_FUNCTION)


class Links(NamedTuple):
    """Backward rows of a batch with their forward ranges, as columns of equal length in row order."""

    row: NDArray[np.int64]
    """Index of the backward row in the batch."""
    event_id: NDArray[np.uint64]
    root: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    """Index into ``tracks``."""
    context: NDArray[np.uint32]
    """Index into ``contexts``."""
    tracks: Sequence[Track]
    contexts: Sequence[SpanContextRef]


class _Run(NamedTuple):
    """Forward ranges sorted by key, one per key. A key is a thread's number and a sequence number, laid out as an event id."""

    key: NDArray[np.uint64]
    event_id: NDArray[np.uint64]
    root: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    context: NDArray[np.uint32]


class ForwardBackwardLinks:
    """Finds the forward range of each backward range, across batches and in bounded memory.

    Forward ranges are kept in sorted runs; a run that is not much longer than the next is merged with it, so that there are few
    to search and each range is merged a few times only.

    Args:
        max_forward_ranges: how many to remember; beyond it the quarter that started first is forgotten and counted.
    """

    def __init__(self, max_forward_ranges: int = MAX_FORWARD_RANGES) -> None:
        self._limit = max_forward_ranges
        self._runs: list[_Run] = []
        self._tracks: Distinct[Track] = Distinct()
        self._contexts: Distinct[SpanContextRef] = Distinct()
        self._thread_numbers: dict[int, int] = {}
        self.forgotten = 0
        """Forward ranges that were given up to stay within the limit."""

    def __len__(self) -> int:
        return sum([len(run.key) for run in self._runs])

    def match(self, batch: Batch) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows; once per batch."""
        rows = np.flatnonzero(batch.sequence_nr >= 0)
        if not len(rows):
            return self._none()
        rows = rows[(batch.kind[rows] == _RANGE) & (batch.sequence_nr[rows] <= ORDINAL_MASK)]
        is_backward = batch.scope[rows] == _BACKWARD
        has_forward = batch.forward_thread_id[rows] != 0
        self._remember(batch, rows[~(is_backward | has_forward)])
        return self._find(batch, rows[is_backward & has_forward])

    def _remember(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        self._thread_numbers.update({each.thread_id: each.number for each in batch.tracks if each.is_thread})
        numbers = np.array([thread.number for thread in batch.tracks], dtype=np.uint64)
        run = _Run(
            key=_keys(np.take(numbers, batch.thread[rows]), batch.sequence_nr[rows]),
            event_id=batch.event_id[rows],
            root=batch.root[rows],
            start_ns=batch.start_ns[rows],
            end_ns=batch.end_ns[rows],
            thread=self._tracks.indices(batch.tracks, batch.thread[rows]),
            context=self._contexts.indices(batch.contexts, batch.context[rows]),
        )
        self._runs.append(_last_started(run))
        self._merge_runs()
        if len(self) > self._limit:
            self._forget_oldest()

    def _merge_runs(self) -> None:
        while len(self._runs) > 1 and len(self._runs[-2].key) < 2 * len(self._runs[-1].key):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged([older, newer]))

    def _forget_oldest(self) -> None:
        everything = _merged(self._runs)
        surplus = len(everything.key) - self._limit * 3 // 4
        if surplus <= 0:
            self._runs = [everything]
            return
        newest = np.ones(len(everything.key), dtype=np.bool_)
        newest[np.argpartition(everything.start_ns, surplus - 1)[:surplus]] = False
        self._runs = [self._with_own_tables(_taken(everything, newest))]
        self._thread_numbers = {each.thread_id: each.number for each in self._tracks.values if each.is_thread}
        self.forgotten += surplus

    def _with_own_tables(self, run: _Run) -> _Run:
        """The same run after the tables have let go of what only forgotten ranges used."""
        threads, contexts = self._tracks.values, self._contexts.values
        self._tracks, self._contexts = Distinct(), Distinct()
        thread = self._tracks.indices(threads, run.thread)
        return run._replace(thread=thread, context=self._contexts.indices(contexts, run.context))

    def _none(self) -> Links:
        """Of a batch that nothing is linked in, as most batches of a program without gradients are."""
        event_id, root, start_ns, end_ns, thread, context = _NO_LINKS
        return Links(_NO_ROWS, event_id, root, start_ns, end_ns, thread, context, self._tracks.values, self._contexts.values)

    def _find(self, batch: Batch, rows: NDArray[np.int64]) -> Links:
        if not len(rows):
            return self._none()
        wanted = _keys(self._numbers_of(batch.forward_thread_id[rows]), batch.sequence_nr[rows])
        best_start = np.full(len(rows), NEVER)
        columns = [np.empty(len(rows), dtype=column) for column in LINK_COLUMNS.values()]
        for run in self._runs:
            place = np.searchsorted(run.key, wanted)
            place[place == len(run.key)] = 0
            better = np.flatnonzero((run.key[place] == wanted) & (run.start_ns[place] >= best_start))
            place = place[better]
            best_start[better] = run.start_ns[place]
            for column, field in zip(columns, LINK_COLUMNS, strict=True):
                column[better] = getattr(run, field)[place]
        found = best_start != NEVER
        event_id, root, start_ns, end_ns, thread, context = [column[found] for column in columns]
        tables = (self._tracks.values, self._contexts.values)
        return Links(rows[found], event_id, root, start_ns, end_ns, thread, context, *tables)

    def _numbers_of(self, thread_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The recorder's numbers of these logical threads; 0, which no thread has, for an unknown one."""
        known = distinct(thread_ids)
        numbers = np.array([self._thread_numbers.get(number, 0) for number in known.tolist()], dtype=np.uint64)
        return np.take(numbers, np.searchsorted(known, thread_ids))


def _keys(numbers: NDArray[np.uint64], sequence_nr: NDArray[np.int64]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = (numbers << np.uint64(ORDINAL_BITS)) | sequence_nr.astype(np.uint64)
    return keys


def _merged(runs: Sequence[_Run]) -> _Run:
    everything = _Run(*[np.concatenate([run[column] for run in runs]) for column in range(len(_Run._fields))])
    in_order = all([older.key[-1] < newer.key[0] for older, newer in pairwise(runs)])  # one thread: numbers only count up
    return everything if in_order else _last_started(everything)


def _taken(run: _Run, which: NDArray[Any]) -> _Run:
    return _Run(*[column[which] for column in run])


def _last_started(run: _Run) -> _Run:
    """Sorted by key, and of the ranges with the same key the one that started last."""
    order = np.argsort(run.key, kind="stable")  # linear where two sorted runs follow each other
    key, start_ns = run.key[order], run.start_ns[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    latest = np.repeat(np.maximum.reduceat(start_ns, first), np.diff(np.append(first, len(key))))
    candidates = np.flatnonzero(start_ns == latest)
    key = key[candidates]
    return _taken(run, order[candidates[np.append(key[1:] != key[:-1], True)]])
