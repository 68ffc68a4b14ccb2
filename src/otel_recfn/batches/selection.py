"""A capture's view of what was recorded for several captures at once.

The recorder records what any capture asked for. A capture sees

    ranges          of its scopes and sources that began after it did; of its profiler run alone, if
                    it has one; no Python calls that are too short for it
    parents, roots  the nearest ancestor that it sees, and the outermost one (``ancestry.py``)
    columns         filled if it asked for them, otherwise empty
    opened          its outermost ranges, when they begin
    steps           the training steps whose optimizer step it saw, each from the first range that
                    it saw in its thread
    samples         those that were taken after it began, if it asked for samples
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.ancestry import Ancestry
from otel_recfn.batches.number_sets import equals, is_in
from otel_recfn.model.batch import Batch, OpenedColumns, Sample, TrainingStep, empty_column
from otel_recfn.model.columns import COLUMNS, OPENED_COLUMNS, Column
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    NUM_SCOPES,
    SOURCES,
    SOURCES_WITHOUT_SCOPES,
    EventFlag,
    EventSource,
    Extra,
    RowKind,
    is_call,
)
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls

Mask = NDArray[np.bool_]
Ids = NDArray[np.uint64]
Rows = NDArray[np.int64]

RECORD_FUNCTIONS = frozenset(
    {EventSource.TORCH, EventSource.RECORD_FUNCTION, EventSource.STEP, EventSource.COMPILATION}
)
"""The sources that every capture asks for: PyTorch's ranges, Python's, the steps that the
program marks, and compilations.
"""
CALL_SOURCES = tuple(source for source, traits in SOURCES.items() if traits.call_prefix)
"""The sources of which some rows are calls of Python code, as their names show."""
NEVER = 1 << 64
PARENT_ELSEWHERE = np.uint32(EventFlag.PARENT_ELSEWHERE)


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
    traced = equals(batch.source, EventSource.PYTHON_CALL)
    for source in CALL_SOURCES:
        inside = equals(batch.source, source) & (batch.caller != 0)
        for name in set(batch.name[inside].tolist()):
            if is_call(source, batch.names[name]):
                traced |= inside & (batch.name == name)
    return np.asarray(traced & equals(batch.kind, RowKind.RANGE))


def opened_columns(batch: Batch, rows: Rows) -> OpenedColumns:
    """``Batch.opened`` of these rows, which are outermost ranges, in the order of their begins."""
    rows = rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))]
    return OpenedColumns({name: getattr(batch, name)[rows] for name in OPENED_COLUMNS}, batch.names)


def _visible_flags(batch: Batch, seen: Mask, parent: Ids) -> NDArray[np.uint32]:
    """The flags of rows whose nearest range that is seen is ``parent``.

    A hidden range may be in one that times don't show. Then the ranges in it are in that one, too.
    """
    flags: NDArray[np.uint32] = batch.flags.copy()
    if (flags[~seen] & PARENT_ELSEWHERE).any():
        flags[parent != batch.parent] |= PARENT_ELSEWHERE
    return flags


class _FirstRange(NamedTuple):
    """The first range of a thread that a capture has seen."""

    event_id: int
    start_ns: int


class Selection:
    """The views of a capture, batch by batch.

    A view announces the ranges that are outermost in it.
    """

    def __init__(self, selected: Selected) -> None:
        self._selected = selected
        takes = [
            [selected.takes(scope, source) for scope in range(NUM_SCOPES)] for source in EventSource
        ]
        self._takes: Mask = np.array(takes, np.bool_)
        self._earlier: Ids = np.zeros(0, np.uint64)
        """Ranges that were open when the capture began."""
        self._since_serial = NEVER
        """The serial at its begin, for rows of which it isn't known what was open then; 0 if it
        began alone.
        """
        self._since_ns = 0
        """Its begin, in Unix nanoseconds, for samples; 0 if it began alone."""
        self._joined_threads: set[int] = set()
        """The threads in which a training step may have begun before the capture did, and of which
        no range was seen, by number.
        """
        self._first_ranges: dict[int, _FirstRange] = {}
        """The first range that was seen of such a thread, by the thread's number."""
        self._open_calls: Ids = np.zeros(0, np.uint64)
        """The Python calls that were open at the last view: their children may have been seen in
        them.
        """
        self._opened_ids: Ids = np.zeros(0, np.uint64)
        """Open ranges that were announced."""
        self._ancestry = Ancestry()

    def start_after(self, batch: Batch, since_serial: int = NEVER) -> None:
        """Begin the capture: ranges that are open in this batch, which was drained last for others,
        are not its own.

        ``since_serial`` is the recorder's from before that drain.
        """
        self._earlier = batch.event_id[batch.closed :].copy()  # a view keeps the batch
        self._since_serial = since_serial
        self._since_ns = batch.drained_ns
        self._joined_threads = {track.number for track in batch.tracks}

    def has_begun_before(self, serial: int, event_id: int) -> bool:
        """Whether the capture, which joined others, had begun before that range, which is open."""
        return serial > self._since_serial and not bool(
            (self._earlier == np.uint64(event_id)).any()
        )

    def continue_after(self, batch: Batch) -> None:
        """Note that the capture was alone up to this batch, and that it gets views from the next
        one on.
        """
        self._ancestry.note_all(batch)
        copies = slice(batch.closed, None)
        self._opened_ids = batch.event_id[copies][batch.is_outermost[copies]]

    def view(self, batch: Batch, *, last: bool = False, copies: bool = False) -> Batch:
        """The capture's view of a batch that was drained with its open ranges.

        Args:
            batch: drained with ``open_ranges``.
            last: the capture ends with it: copies of open ranges are rows of the view, as partial
                ones, and steps that go on are over for it.
            copies: the view has copies of the open ranges, too.
        """
        seen = self._seen(batch)
        parent, root = self._ancestry.visible_ancestors(batch, seen)
        opened = self._new_opened(
            batch, seen & (root == batch.event_id) & equals(batch.kind, RowKind.RANGE)
        )
        rows = seen.copy()
        if not (last or copies):
            rows[batch.closed :] = False
        self._earlier = self._earlier[~is_in(self._earlier, batch.event_id[: batch.closed])]
        columns: dict[str, NDArray[Any]] = {
            "parent": parent,
            "root": root,
            "flags": _visible_flags(batch, seen, parent),
        }
        if batch.enclosing_module.any():  # if no range is seen around a call, no module is
            columns["enclosing_module"] = np.where(
                parent == 0, np.uint32(0), batch.enclosing_module
            )
        taken = batch.take(
            rows,
            opened=opened,
            steps=self._steps(batch, seen, last=last),
            samples=self._own_samples(batch),
            **self._empty_columns(int(rows.sum()))
            | {name: column[rows] for name, column in columns.items()},
        )
        return taken if last else replace(taken, closed=int(rows[: batch.closed].sum()))

    def _empty_columns(self, count: int) -> dict[str, NDArray[Any]]:
        """The columns that the capture didn't ask for, of so many rows."""
        return {
            column.name: empty_column(column.dtype, count, column.empty)
            for column in COLUMNS
            if self._is_unwanted(column)
        }

    def _own_samples(self, batch: Batch) -> list[Sample]:
        if not self._selected.extras & Extra.SAMPLES:
            return []
        return [sample for sample in batch.samples if sample.time_ns >= self._since_ns]

    def _seen(self, batch: Batch) -> Mask:
        wanted = self._selected
        in_scope = np.take(self._takes, batch.source * np.uint8(NUM_SCOPES) + batch.scope)
        if EventSource.PYTHON_CALL in wanted.sources and EventSource.MODULE not in wanted.sources:
            # A module's call has one range, even if another capture asked for it.
            in_scope |= traced_calls(batch)
        own_run = batch.profiler == (wanted.profiler or 0)
        memory = bool(wanted.extras & Extra.MEMORY)
        seen = np.where(
            equals(batch.kind, RowKind.MARK),
            own_run,
            np.where(equals(batch.kind, RowKind.MEMORY), memory, in_scope),
        )
        if wanted.profiler is not None:
            seen &= own_run
        if wanted.leaves_out_short_calls:
            calls = equals(batch.source, EventSource.PYTHON_CALL)
            short = calls & (batch.end_ns - batch.start_ns < wanted.calls.min_duration_ns)
            short[batch.closed :] = False
            seen &= ~short | is_in(batch.event_id, self._open_calls)
            self._open_calls = batch.event_id[batch.closed :][calls[batch.closed :]]
        if len(self._earlier):
            seen &= ~is_in(batch.event_id, self._earlier)
        return np.asarray(seen, np.bool_)

    def _steps(self, batch: Batch, seen: Mask, *, last: bool) -> list[TrainingStep]:
        """The training steps that are over, each from its first range that was seen."""
        if self._joined_threads:
            self._note_first_ranges(batch, seen)
        steps = [*batch.steps, *(batch.unfinished_steps if last else ())]
        return [own for step in steps if (own := self._own_step(step, batch)) is not None]

    def _note_first_ranges(self, batch: Batch, seen: Mask) -> None:
        # Steps lie in traced calls, and begin with another range.
        ranges = seen & equals(batch.kind, RowKind.RANGE)
        ranges &= ~equals(batch.source, EventSource.PYTHON_CALL)
        counts = np.bincount(batch.thread[ranges], minlength=len(batch.tracks))
        for index in np.flatnonzero(counts).tolist():
            number = batch.tracks[index].number
            if number in self._joined_threads:
                # All that was begun by now is here, since what hasn't ended has a copy.
                rows = np.flatnonzero(ranges & equals(batch.thread, index))
                row = rows[batch.event_id[rows].argmin()]
                first = _FirstRange(int(batch.event_id[row]), int(batch.start_ns[row]))
                self._first_ranges[number] = first
                self._joined_threads.remove(number)

    def _own_step(self, step: TrainingStep, batch: Batch) -> TrainingStep | None:
        """The step as the capture saw it; None if it didn't see its optimizer step."""
        number = batch.tracks[step.thread].number
        first = self._first_ranges.get(number)
        if number in self._joined_threads or (first is not None and step.last < first.event_id):
            return None
        if first is None or first.event_id <= step.first:
            return step
        return step._replace(first=first.event_id, start_ns=first.start_ns)

    def _new_opened(self, batch: Batch, outermost: Mask) -> OpenedColumns:
        rows = np.flatnonzero(outermost & ~is_in(batch.event_id, self._opened_ids))
        still_open = np.append(self._opened_ids, batch.event_id[rows[rows >= batch.closed]])
        self._opened_ids = still_open[~is_in(still_open, batch.event_id[: batch.closed])]
        return opened_columns(batch, rows)

    def _is_unwanted(self, column: Column[Any, Any]) -> bool:
        if (
            column.name in ("caller", "call_site")
            and EventSource.PYTHON_CALL not in self._selected.sources
        ):
            return True
        if column.name == "call_site" and not self._selected.calls.call_sites:
            return True
        return bool(column.extra and not self._selected.extras & column.extra)
