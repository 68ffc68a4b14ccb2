"""A capture's view of what was recorded for several captures at once.

The recorder records what any capture asked for. A capture sees the ranges that began after it did, of its scopes, with the
extras it asked for; of its profiler run alone, if it has one. What it doesn't see is cut out of the tree: a range's parent
becomes the nearest ancestor that the capture sees. A parent, of any thread, and open or ended, is looked for

1. among the rows of the batch, which has copies of open ranges if it is for views,
2. among the ranges that ended in the batch before, or that are around an open one.

A parent in neither began before the capture, or had ended a batch before the row began: the row becomes top-level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch, OpenedColumns, empty_column
from otel_recfn.model.columns import ANNOUNCED_COLUMNS, COLUMNS, Column
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    NUM_SCOPES,
    SOURCES,
    SOURCES_WITHOUT_SCOPES,
    EventSource,
    Extra,
    RowKind,
    is_call,
)
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls

Mask = NDArray[np.bool_]
Ids = NDArray[np.uint64]
Rows = NDArray[np.int64]
Columns = tuple[Ids, ...]
"""Columns of equal length."""

RECORD_FUNCTIONS = frozenset(
    {EventSource.TORCH, EventSource.RECORD_FUNCTION, EventSource.STEP, EventSource.COMPILATION}
)
"""The sources that every capture asks for: PyTorch's ranges, Python's, the steps that the program marks, and compilations."""
SOURCES_OF_CALLS = tuple(source for source, traits in SOURCES.items() if traits.call_prefix)
"""The sources of which some rows are calls of Python code, as their names show."""
NEVER = 1 << 64


@dataclass(frozen=True)
class Selected:
    """The ranges and columns that a capture asks for.

    Attributes:
        scopes: a bit per RecordScope.
        extras: what is recorded only on request.
        sources: the sources of its rows; those in SOURCES_WITHOUT_SCOPES whatever their scope.
        profiler: rows of this profiler run alone; None for rows of any, but no run's marks.
        calls: which Python calls, if it asks for them.
    """

    scopes: int = ALL_SCOPES_MASK
    extras: Extra = Extra.NONE
    sources: frozenset[EventSource] = RECORD_FUNCTIONS
    profiler: int | None = None
    calls: PythonCalls = ALL_CALLS

    def takes(self, scope: int, source: int) -> bool:
        """Whether ranges of that scope and source are asked for."""
        return source in self.sources and (
            source in SOURCES_WITHOUT_SCOPES or bool(self.scopes >> scope & 1)
        )

    @property
    def is_all_that_is_recorded(self) -> bool:
        """Whether a batch that is recorded for this alone needs no view."""
        return (
            self.profiler is None
            and EventSource.RECORD_FUNCTION in self.sources
            and not self.leaves_out_short_calls
        )

    @property
    def leaves_out_short_calls(self) -> bool:
        """Whether a call's duration decides whether it is seen."""
        return EventSource.PYTHON_CALL in self.sources and self.calls.min_duration_ns > 0


def traced_calls(batch: Batch) -> Mask:
    """The rows that are traced Python calls, or a module's inside one."""
    traced = batch.source == EventSource.PYTHON_CALL
    for source in SOURCES_OF_CALLS:
        inside = (batch.source == source) & (batch.caller != 0)
        for name in set(batch.name[inside].tolist()):
            if is_call(source, batch.names[name]):
                traced |= inside & (batch.name == name)
    return np.asarray(traced & (batch.kind == RowKind.RANGE))


def announced(batch: Batch, rows: Rows) -> OpenedColumns:
    """``Batch.opened`` of these rows, which are top-level ranges, in the order of their begins."""
    rows = rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))]
    return OpenedColumns(
        {name: getattr(batch, name)[rows] for name in ANNOUNCED_COLUMNS}, batch.names
    )


class Selection:
    """The views of a capture, batch by batch. A view announces the ranges that are top-level in it."""

    def __init__(self, selected: Selected) -> None:
        self._selected = selected
        takes = [
            [selected.takes(scope, source) for scope in range(NUM_SCOPES)] for source in EventSource
        ]
        self._takes: Mask = np.array(takes, np.bool_)
        self._earlier: Ids = np.zeros(0, np.uint64)
        """Ranges that were open when the capture began."""
        self._since_serial = NEVER
        """The serial at its begin, for rows of which nobody knows what was open then; 0 if it began alone."""
        self._open_calls: Ids = np.zeros(0, np.uint64)
        """The Python calls that were open at the last view: their children may have been seen in them."""
        self._announced: Ids = np.zeros(0, np.uint64)
        """Open ranges that were announced as top-level."""
        self._ancestry = Ancestry()

    def begin_after(self, batch: Batch, since_serial: int = NEVER) -> None:
        """Begin the capture: ranges that are open in this batch, which was drained last for others, are not its own.

        ``since_serial`` is the recorder's from before that drain.
        """
        self._earlier = batch.event_id[batch.closed :].copy()  # a view keeps the batch
        self._since_serial = since_serial

    def has_begun_before(self, serial: int, event_id: int) -> bool:
        """Whether the capture, which joined others, had begun before that range, which is open."""
        return serial > self._since_serial and not bool(
            (self._earlier == np.uint64(event_id)).any()
        )

    def go_on_after(self, batch: Batch) -> None:
        """Note that the capture was alone up to this batch, and that it gets views from the next one on."""
        self._ancestry.note_all(batch)
        copies = slice(batch.closed, None)
        self._announced = batch.event_id[copies][batch.parent[copies] == 0]

    def view(self, batch: Batch, *, last: bool = False, copies: bool = False) -> Batch:
        """The capture's view of a batch that was drained with its open ranges.

        Args:
            batch: drained with ``open_ranges``.
            last: the capture ends with it: copies of open ranges are rows of the view, as partial ones.
            copies: the view has copies of the open ranges, too.
        """
        seen = self._seen(batch)
        parent, root = self._ancestry.around(batch, seen)
        opened = self._announce(batch, seen & (parent == 0) & (batch.kind == RowKind.RANGE))
        rows = seen.copy()
        if not (last or copies):
            rows[batch.closed :] = False
        self._earlier = self._earlier[~is_in(self._earlier, batch.event_id[: batch.closed])]
        unwanted = {
            column.name: empty_column(column.dtype, int(rows.sum()), column.empty)
            for column in COLUMNS
            if self._is_unwanted(column)
        }
        taken = batch.take(rows, parent=parent[rows], root=root[rows], opened=opened, **unwanted)
        return taken if last else replace(taken, closed=int(rows[: batch.closed].sum()))

    def _seen(self, batch: Batch) -> Mask:
        wanted = self._selected
        in_scope = np.take(self._takes, batch.source.astype(np.intp) * NUM_SCOPES + batch.scope)
        if EventSource.PYTHON_CALL in wanted.sources and EventSource.MODULE not in wanted.sources:
            in_scope |= traced_calls(
                batch
            )  # a module's call has one range, even if another capture asked for it
        own_run = batch.profiler == (wanted.profiler or 0)
        memory = bool(wanted.extras & Extra.MEMORY)
        seen = np.where(
            batch.kind == RowKind.MARK,
            own_run,
            np.where(batch.kind == RowKind.MEMORY, memory, in_scope),
        )
        if wanted.profiler is not None:
            seen &= own_run
        if wanted.leaves_out_short_calls:
            calls = batch.source == EventSource.PYTHON_CALL
            short = calls & (batch.end_ns - batch.start_ns < wanted.calls.min_duration_ns)
            short[batch.closed :] = False
            seen &= ~short | is_in(batch.event_id, self._open_calls)
            self._open_calls = batch.event_id[batch.closed :][calls[batch.closed :]]
        if len(self._earlier):
            seen &= ~is_in(batch.event_id, self._earlier)
        return np.asarray(seen, np.bool_)

    def _announce(self, batch: Batch, top_level: Mask) -> OpenedColumns:
        rows = np.flatnonzero(top_level & ~is_in(batch.event_id, self._announced))
        still_open = np.append(self._announced, batch.event_id[rows[rows >= batch.closed]])
        self._announced = still_open[~is_in(still_open, batch.event_id[: batch.closed])]
        return announced(batch, rows)

    def _is_unwanted(self, column: Column[Any, Any]) -> bool:
        if (
            column.name in ("caller", "call_site")
            and EventSource.PYTHON_CALL not in self._selected.sources
        ):
            return True
        if column.name == "call_site" and not self._selected.calls.call_sites:
            return True
        return bool(column.extra and not self._selected.extras & column.extra)


class VisibleAncestors(NamedTuple):
    """The ranges that are seen around each row."""

    parent: Ids
    """The nearest ancestor that is seen; 0 if there is none."""
    root: Ids
    """The outermost ancestor that is seen; the row itself if there is none."""


class Ancestry:
    """The ranges that a capture sees around each row, batch by batch."""

    def __init__(self) -> None:
        self._known: Columns = (np.zeros(0, np.uint64),) * 3
        """The ids, ascending, of ranges that ended in the last batch or are around an open one; the nearest range that is seen,
        itself or around it, or 0; and its root."""

    def note_all(self, batch: Batch) -> None:
        """Note a batch with copies of the open ranges, all of which the capture has seen."""
        self._remember(
            (batch.event_id, batch.event_id, batch.root), (batch.parent, batch.parent, batch.root)
        )

    def around(self, batch: Batch, seen: Mask) -> VisibleAncestors:
        """The ranges that the capture sees around rows of a batch, drained with the open ranges, of which it sees ``seen``."""
        event_id, hidden = batch.event_id, np.flatnonzero(~seen)
        order = hidden[np.argsort(event_id[hidden])]
        parent = followed(batch.parent.copy(), event_id[order], batch.parent[order])
        outside = (parent != 0) & ~is_in(parent, event_id)
        rows, wanted = np.flatnonzero(outside), parent[outside]
        nearest, above = self._find(wanted)
        parent[rows], root = nearest, event_id.copy()
        root[rows] = np.where(nearest != 0, above, event_id[rows])
        root = _roots(event_id, parent, root, nested=(parent != 0) & ~outside)
        ended, is_open = (
            np.flatnonzero(batch.kind[: batch.closed] == RowKind.RANGE),
            rows >= batch.closed,
        )
        shown = np.where(seen, event_id, parent)
        self._remember(
            (event_id[ended], shown[ended], root[ended]),
            (wanted[is_open], nearest[is_open], above[is_open]),
        )
        return VisibleAncestors(parent, root)

    def _remember(self, *columns: Columns) -> None:
        ids, nearest, root = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
        order = np.argsort(ids)
        self._known = ids[order], nearest[order], root[order]

    def _find(self, wanted: Ids) -> tuple[Ids, Ids]:
        """The range that is seen nearest to each wanted one, and its root; 0 for those that aren't known."""
        ids, nearest, root = self._known
        if not len(ids):
            return np.zeros_like(wanted), np.zeros_like(wanted)
        place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        known = ids[place] == wanted
        return np.where(known, nearest[place], np.uint64(0)), np.where(
            known, root[place], np.uint64(0)
        )


def _roots(event_id: Ids, parent: Ids, root: Ids, nested: Mask) -> Ids:
    """The root of each row: that of its outermost ancestor among the rows."""
    inner = np.flatnonzero(nested)
    order = inner[np.argsort(event_id[inner])]
    outermost = followed(event_id.copy(), event_id[order], parent[order])
    in_order = np.argsort(event_id)
    found: Ids = root[in_order[np.searchsorted(event_id[in_order], outermost)]]
    return found


def followed(ids: Ids, known: Ids, leads_to: Ids) -> Ids:
    """Each id, replaced by what it leads to as long as it is among the known ones (sorted)."""
    rows = np.arange(len(ids)) if len(known) else np.zeros(0, np.int64)
    while len(rows):
        place = np.minimum(np.searchsorted(known, ids[rows]), len(known) - 1)
        found = known[place] == ids[rows]
        rows, place = rows[found], place[found]
        ids[rows] = leads_to[place]
    return ids
