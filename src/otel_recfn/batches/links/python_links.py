"""The Python twin of finding links: sorted runs of forward ranges, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.links.protocol import MAX_FORWARD_RANGES, MAX_MATCHED_RANGES, Links
from otel_recfn.batches.links.tables import LinkTables, thread_numbers
from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch, SpanContextRef, Track
from otel_recfn.model.events import ORDINAL_BITS, ORDINAL_MASK, EventKind
from otel_recfn.model.scope import RecordScope

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


class _Run(NamedTuple):
    """Forward ranges sorted by key, one per key. A key is a thread's number and a sequence number, laid out as an event id."""

    key: NDArray[np.uint64]
    event_id: NDArray[np.uint64]
    root: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    context: NDArray[np.uint32]
    matched: NDArray[np.bool_]
    """Whether a backward range belongs to it."""


class PythonLinks:
    """Finds the forward range of each backward range, across batches and in bounded memory.

    Forward ranges are kept in sorted runs; a run that is not much longer than the next is merged with it, so that there are few
    to search and each range is merged a few times only.

    Args:
        max_forward_ranges: how many to remember; beyond it the quarter that started first is forgotten and counted.
        max_matched_ranges: how many of them that have a backward; beyond it the quarter that started first is forgotten.
    """

    def __init__(self, max_forward_ranges: int = MAX_FORWARD_RANGES, max_matched_ranges: int = MAX_MATCHED_RANGES) -> None:
        self._limit, self._most_matched = max_forward_ranges, max_matched_ranges
        self._runs: list[_Run] = []
        self._tables = LinkTables()
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
        found = self._find(batch, rows[is_backward & has_forward])
        self._forget_some()
        return found

    def _remember(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        self._tables.note_threads(batch)
        run = _Run(
            key=_keys(np.take(thread_numbers(batch), batch.thread[rows]), batch.sequence_nr[rows]),
            event_id=batch.event_id[rows],
            root=batch.root[rows],
            start_ns=batch.start_ns[rows],
            end_ns=batch.end_ns[rows],
            thread=self._tables.tracks.indices(batch.tracks, batch.thread[rows]),
            context=self._tables.contexts.indices(batch.contexts, batch.context[rows]),
            matched=np.zeros(len(rows), np.bool_),
        )
        self._runs.append(_last_started(run))
        self._merge_runs()

    def _merge_runs(self) -> None:
        while len(self._runs) > 1 and len(self._runs[-2].key) < 2 * len(self._runs[-1].key):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged([older, newer]))

    def _forget_some(self) -> None:
        matched = sum([np.count_nonzero(run.matched) for run in self._runs])
        if matched > self._most_matched:
            self._forget(self._most_matched * 3 // 4, only_matched=True)
        if len(self) > self._limit:
            self.forgotten += self._forget(self._limit * 3 // 4, only_matched=False)

    def _forget(self, most: int, *, only_matched: bool) -> int:
        """Those that started first, so that so many are left; of the matched ones alone, if it is said. How many."""
        everything = _merged(self._runs)
        places = np.flatnonzero(everything.matched) if only_matched else np.arange(len(everything.key))
        surplus = len(places) - most
        if surplus <= 0:
            self._runs = [everything]
            return 0
        kept = np.ones(len(everything.key), dtype=np.bool_)
        kept[places[np.argpartition(everything.start_ns[places], surplus - 1)[:surplus]]] = False
        self._use_alone(_taken(everything, kept))
        return surplus

    def _use_alone(self, run: _Run) -> None:
        """Of this run, with tables of what it indexes. They take the others' place together: there may be no memory before."""
        before, tables = self._tables, self._tables.of_used(run.thread, run.context)
        thread = tables.tracks.indices(before.tracks.values, run.thread)
        context = tables.contexts.indices(before.contexts.values, run.context)
        self._runs, self._tables = [run._replace(thread=thread, context=context)], tables

    def _none(self) -> Links:
        """Of a batch that nothing is linked in, as most batches of a program without gradients are."""
        event_id, root, start_ns, end_ns, thread, context = _NO_LINKS
        return Links(_NO_ROWS, event_id, root, start_ns, end_ns, thread, context, *self._values())

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
            best_start[better], run.matched[place] = run.start_ns[place], True
            for column, field in zip(columns, LINK_COLUMNS, strict=True):
                column[better] = getattr(run, field)[place]
        found = best_start != NEVER
        event_id, root, start_ns, end_ns, thread, context = [column[found] for column in columns]
        return Links(rows[found], event_id, root, start_ns, end_ns, thread, context, *self._values())

    def _values(self) -> tuple[Sequence[Track], Sequence[SpanContextRef]]:
        return self._tables.tracks.values, self._tables.contexts.values

    def _numbers_of(self, thread_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        known = distinct(thread_ids)
        return np.take(self._tables.numbers_of(known), np.searchsorted(known, thread_ids))


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
