"""A capture's view of what was recorded for several captures at once.

The recorder records what any capture asked for. A capture sees the ranges that began after it did, of its scopes, with the
extras it asked for; of its profiler run alone, if it has one. What it doesn't see is cut out of the tree: a range's parent
becomes the nearest ancestor that the capture sees.

``batches/ancestry.py`` finds it. Batches for views are drained together with copies of the ranges that are open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from otel_recfn.batches.ancestry import Ancestry, Ids, Mask
from otel_recfn.batches.announced import announced
from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.traced_calls import traced_calls
from otel_recfn.model.batch import Batch, Opened
from otel_recfn.model.events import ALL_SCOPES_MASK, NUM_SCOPES, SOURCES_WITHOUT_SCOPES, EventKind, EventSource, Extra
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls

RECORD_FUNCTIONS = frozenset({EventSource.TORCH, EventSource.RECORD_FUNCTION, EventSource.STEP})
"""PyTorch's and Python's, and the steps that the program marks: what every capture asks for."""
SOURCES = tuple(EventSource)
NEVER = 1 << 64


@dataclass(frozen=True)
class Selected:
    """What a capture asks for.

    Attributes:
        scopes: a bit per RecordScope.
        extras: what is recorded only on request.
        sources: whose rows. Those of SOURCES_WITHOUT_SCOPES whatever their scope.
        profiler: rows of this profiler run alone; None for rows of any, but no run's marks.
        calls: of Python calls, where they are asked for, these.
    """

    scopes: int = ALL_SCOPES_MASK
    extras: Extra = Extra.NONE
    sources: frozenset[EventSource] = RECORD_FUNCTIONS
    profiler: int | None = None
    calls: PythonCalls = ALL_CALLS

    def takes(self, scope: int, source: int) -> bool:
        """Whether ranges of that scope and source are asked for."""
        return source in self.sources and (source in SOURCES_WITHOUT_SCOPES or bool(self.scopes >> scope & 1))

    @property
    def is_all_that_is_recorded(self) -> bool:
        """Whether what a recorder records for this alone needs no view."""
        return self.profiler is None and EventSource.RECORD_FUNCTION in self.sources and not self.leaves_out_short_calls

    @property
    def leaves_out_short_calls(self) -> bool:
        """Whether a call's duration decides whether it is seen."""
        return EventSource.PYTHON_CALL in self.sources and self.calls.min_duration_ns > 0


class Selection:
    """Makes views, batch by batch. A view's batch announces what is top-level in the view."""

    def __init__(self, selected: Selected) -> None:
        self._selected = selected
        takes = [[selected.takes(scope, source) for scope in range(NUM_SCOPES)] for source in SOURCES]
        self._takes: Mask = np.array(takes, np.bool_)
        self._earlier: Ids = np.zeros(0, np.uint64)
        """Ranges that were open when the capture began."""
        self._since_serial = NEVER
        """When it began, for rows of which nobody knows what was open then; 0 where it began alone."""
        self._open_calls: Ids = np.zeros(0, np.uint64)
        """Of Python calls, those that were open at the last view: their children may have been seen in them."""
        self._announced: Ids = np.zeros(0, np.uint64)
        """Ranges that are open, and announced as top-level."""
        self._ancestry = Ancestry()

    def begin_after(self, batch: Batch, since_serial: int = NEVER) -> None:
        """The capture begins now: ranges that are open in this batch are not its own.

        Args:
            batch: what was drained last for others.
            since_serial: the recorder's from before that drain, for ``has_begun_before``.
        """
        self._earlier = batch.event_id[batch.closed :].copy()  # a view keeps the batch
        self._since_serial = since_serial

    def has_begun_before(self, serial: int, event_id: int) -> bool:
        """Whether the capture, which joined others, had begun before that range, which is open."""
        return serial > self._since_serial and not bool((self._earlier == np.uint64(event_id)).any())

    def go_on_after(self, batch: Batch) -> None:
        """Up to this batch the capture was the only one and got whole batches; from the next one on it gets views."""
        self._ancestry.was_alone()
        copies = slice(batch.closed, None)
        self._announced = batch.event_id[copies][batch.parent[copies] == 0]

    def view(self, batch: Batch, *, last: bool = False, copies: bool = False) -> Batch:
        """What the capture sees of a batch that was drained with its open ranges.

        Args:
            batch: drained with ``open_ranges``.
            last: the capture ends with it: copies of open ranges are rows of the view, as partial ones.
            copies: the view has copies of the open ranges, too.
        """
        seen = self._seen(batch)
        parent, root = self._ancestry.around(batch, seen)
        opened = self._announce(batch, seen & (parent == 0) & (batch.kind == EventKind.RANGE))
        self._note_open_calls(batch)
        rows = seen.copy()
        if not (last or copies):
            rows[batch.closed :] = False
        self._earlier = self._earlier[~is_in(self._earlier, batch.event_id[: batch.closed])]
        taken = batch.take(rows, parent=parent[rows], root=root[rows], opened=opened, **self._without_unwanted(batch, rows))
        return taken if last else replace(taken, closed=int(rows[: batch.closed].sum()))

    def _seen(self, batch: Batch) -> Mask:
        wanted = self._selected
        in_scope = np.take(self._takes, batch.source.astype(np.intp) * NUM_SCOPES + batch.scope)
        if EventSource.PYTHON_CALL in wanted.sources and EventSource.MODULE not in wanted.sources:
            in_scope |= traced_calls(batch)  # a module's call has one range, also where another capture asked for it
        own_run = batch.profiler == (wanted.profiler or 0)
        memory = bool(wanted.extras & Extra.MEMORY)
        seen = np.where(batch.kind == EventKind.MARK, own_run, np.where(batch.kind == EventKind.MEMORY, memory, in_scope))
        if wanted.profiler is not None:
            seen &= own_run
        if wanted.leaves_out_short_calls:
            seen &= ~self._is_short_call(batch)
        if len(self._earlier):
            seen &= ~is_in(batch.event_id, self._earlier)
        return np.asarray(seen, np.bool_)

    def _note_open_calls(self, batch: Batch) -> None:
        if self._selected.leaves_out_short_calls:
            copies = slice(batch.closed, None)
            self._open_calls = batch.event_id[copies][batch.source[copies] == EventSource.PYTHON_CALL]

    def _is_short_call(self, batch: Batch) -> Mask:
        short = (batch.source == EventSource.PYTHON_CALL) & (
            batch.end_ns - batch.start_ns < self._selected.calls.min_duration_ns
        )
        short[batch.closed :] = False
        return np.asarray(short & ~is_in(batch.event_id, self._open_calls), np.bool_)

    def _announce(self, batch: Batch, top_level: Mask) -> Sequence[Opened]:
        closed = batch.event_id[: batch.closed]
        rows = np.flatnonzero(top_level & ~is_in(batch.event_id, self._announced))
        still_open = np.append(self._announced, batch.event_id[rows[rows >= batch.closed]])
        self._announced = still_open[~is_in(still_open, closed)]
        return announced(batch, rows)

    def _without_unwanted(self, batch: Batch, rows: Mask) -> dict[str, Any]:
        """The columns that say nothing in the view, empty."""
        unwanted = {
            Extra.SHAPES: ("shapes", "dtypes", "concrete_inputs"),
            Extra.FLOPS: ("flops", "words"),
            Extra.STACK: ("stack",),
        }
        names = [name for extra, columns in unwanted.items() if not self._selected.extras & extra for name in columns]
        if EventSource.PYTHON_CALL not in self._selected.sources:
            names += ["caller", "call_site"]
        elif not self._selected.calls.call_sites:
            names.append("call_site")
        return {name: np.zeros(int(rows.sum()), getattr(batch, name).dtype) for name in names}
