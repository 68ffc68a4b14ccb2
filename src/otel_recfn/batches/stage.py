"""The way of rows to units, and the decision of units: ``_native.Stage``, with its tables as numpy sees them.

    batch ──► add ──► planned, linked, folded natively; the rows that may be kept wait here
    units ──► decide ──► Decided: the ranges that are kept, sums of the others, summaries of call paths

A unit's ranges wait until there are enough of them, or it ends; then they are compared with each other and with those that were
kept before. So a unit that ends soon, as most do, is decided once, when it is known how many spans it may have.

A range comes when it has ended, after its children. It ranks by its duration, and of equal ones the one that began first ranks
higher, but always above its descendants, so that a kept range has all its ancestors. The others are folded into their nearest
kept ancestor. What is kept in the end shows the unit's tree of calls, if there are more long ranges than spans.

A range that comes after its parent, as asynchronous ones may, belongs directly to the unit; so do, if a unit is finished in
parts, the descendants of a range that comes with a later part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_recfn import _native
from otel_recfn.batches.merging import NOTHING, WaitingRows
from otel_recfn.batches.number_sets import Places
from otel_recfn.batches.span_names import NumberedNames, with_span_names
from otel_recfn.model.batch import Batch, SpanContextRef, empty_column
from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import OVERLAPPING, ContextFlag, EventSource, RecordScope
from otel_recfn.model.generation import PHASE
from otel_recfn.support.span_ids import current_key, span_ids

Table = NDArray[Any]
"""A numpy array of records with named fields."""
Ids = NDArray[np.uint64]
COLUMN_BYTES = 400
"""The bytes of a column beside its values. In a unit of few spans they are much."""
OBJECTS_BYTES = 1600
"""The bytes of the objects around a plan without a row, whose batch is shared."""
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SUPPRESSED, _SAMPLED = int(ContextFlag.SUPPRESSED), int(ContextFlag.SAMPLED)

MOST_WAITING = 1024
"""The ranges of a unit that wait before they are compared, unless the caller gives another number."""
MANY_ROWS = 5000
"""The rows whose decision takes some 0.1 ms, and is done without the GIL."""
MAX_NAMES = 1 << 17
_STEP = int(ContextFlag.STEP)
_LOW = (1 << 64) - 1


def _rows(**fields: Any) -> np.dtype[Any]:
    """The type of a table's records, as C++ lays them out."""
    return np.dtype(list(fields.items()), align=True)


_ABOVE: dict[str, Any] = {"trace_high": np.uint64, "trace_low": np.uint64, "span_id": np.uint64}
_CONTEXT = _rows(**_ABOVE, fate=np.uint8, of_step=np.uint8)
_ROOT = _rows(event_id=np.uint64, **_ABOVE)
_IN_BATCH = _rows(
    **_ABOVE,
    root=np.uint64,
    **dict.fromkeys(
        (
            "context",
            "begun",
            "rows",
            "first_ns",
            "last_ns",
            "outermost",
            "failed",
            "top_ns",
            "top_cpu_ns",
        ),
        np.int64,
    ),
)
_TO_DECIDE = _rows(
    **_ABOVE,
    **dict.fromkeys(("budget", "start_ns", "end_ns"), np.int64),
    goes_on=np.bool_,
    tells_itself=np.bool_,
)
_LINK = _rows(span_id=np.uint64, trace=np.uint32)
_KEPT = _rows(
    parent=np.uint64,
    link=_LINK,
    **dict.fromkeys(("row", "start_ns", "end_ns"), np.int64),
    unit=np.uint32,
)
_SUMS = _rows(
    **dict.fromkeys(("unit", "span", "of_unit", "ranges", "duration_ns", "top_end"), np.int64)
)
_TOP = _rows(count=np.int64, self_ns=np.int64, name=np.uint32)
_SUMMARY = _rows(
    **dict.fromkeys(("span_id", "parent_id", "first_id"), np.uint64),
    **dict.fromkeys(
        ("count", "total_ns", "shortest_ns", "longest_ns", "start_ns", "end_ns"), np.int64
    ),
    **dict.fromkeys(("cpu_time_ns", "row"), np.int64),
    **dict.fromkeys(("unit", "name", "module"), np.uint32),
)
_TRACE = _rows(high=np.uint64, low=np.uint64)


class Fate(IntEnum):
    """The fate of a row, which becomes a span from ``IN_SPAN`` on."""

    OTHER_KIND = 0
    """No span: a mark, a change of memory, or a step, whose span the program has."""
    SUPPRESSED = 1
    """No span: instrumentation was suppressed."""
    UNSAMPLED = 2
    """No span: its trace isn't sampled."""
    IN_SPAN = 3
    """A span below the one that was current when the outermost range began."""
    ROOTLESS = 4
    """A span in a trace that we start, if there is one, because no span was current. This is the largest value."""


_WITHOUT, _ROOTLESS, _IN_SPAN, _UNSAMPLED = (
    Fate.SUPPRESSED,
    Fate.ROOTLESS,
    Fate.IN_SPAN,
    Fate.UNSAMPLED,
)


class SpanPlan(NamedTuple):
    """The spans that rows become: columns of equal length, but for the last two fields."""

    batch: Batch
    row: Places
    """The rows that become spans."""
    parent: Ids
    """The event id of the parent range; 0 if the parent is the span above."""
    above: Places
    """Index into ``spans_above``: the parent of the outermost range's span."""
    linked_id: Ids
    """The span id that the span links to; 0 for none."""
    linked_above: Places
    """Index into ``spans_above``: the span in whose trace the linked one is."""
    spans_above: Sequence[SpanContext]
    torch_names: bool = False
    """Whether spans of module calls have torch.profiler's names."""

    def named(self, further: Mapping[int, Mapping[str, Any]]) -> SpanPlan:
        """The same plan with the names of its spans, and the classes of module calls. ``further`` are attributes, by row."""
        batch, rows = self.batch, self.row
        source, scope = batch.source[rows], batch.scope[rows]
        phases = (source == EventSource.COMPILATION) | (source == EventSource.TORCH) & (
            scope == RecordScope.USER_SCOPE
        )
        rows = rows[(source == EventSource.MODULE) | phases]
        if not len(rows):
            return self
        prefills = [row for row, told in further.items() if PHASE in told]
        return self._replace(
            batch=with_span_names(batch, rows, torch_names=self.torch_names, prefills=prefills)
        )

    @property
    def span_id(self) -> Ids:
        """The id of each span. It is made when asked for, because most ranges get no span."""
        return span_ids(self.batch.event_id[self.row])

    @property
    def parent_id(self) -> Ids:
        """The parent's span id."""
        if not len(self.row):
            return self.parent
        above_id = np.array([span.span_id for span in self.spans_above], np.uint64)
        return np.where(self.parent == 0, np.take(above_id, self.above), span_ids(self.parent))

    def nbytes(
        self, texts: Iterable[str], beside: Sequence[NDArray[Any]] = (), single: Batch = NOTHING
    ) -> int:
        """The approximate bytes that it takes, with these texts, and columns and rows beside its own."""
        nbytes, columns = sum(map(len, texts)), [*beside]
        if len(self.batch):
            columns += [getattr(self, name) for name in self._fields[1:-2]]
        else:
            nbytes += OBJECTS_BYTES
        for batch in (self.batch, single):
            if len(batch):
                columns += [
                    getattr(batch, column.name) for column in COLUMNS if not batch.is_empty(column)
                ]
        return nbytes + sum([COLUMN_BYTES + column.nbytes for column in columns])

    def part(self, which: slice | Places) -> SpanPlan:
        """A plan of some of the spans."""
        columns = {name: getattr(self, name)[which] for name in self._fields[1:-2]}
        return self._replace(**columns)


def fate_of(context: SpanContextRef) -> Fate:
    """The fate of ranges in a context."""
    flags = int(
        context.flags
    )  # an operation on an IntFlag, or finding a member, costs as much as 20 rows
    if flags & _SUPPRESSED:
        return _WITHOUT
    if context.trace_id == 0:
        return _ROOTLESS
    return _IN_SPAN if flags & _SAMPLED else _UNSAMPLED


def span_context(context: SpanContextRef) -> SpanContext:
    """The program's span that a context stands for."""
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)


class UnitInBatch(NamedTuple):
    """A unit's share of a batch."""

    above: SpanContext
    begun: int
    """The number of outermost ranges that were announced below it."""
    rows: int
    """The number of rows that become spans or are folded; the fields below are of these."""
    first_ns: int
    last_ns: int
    outermost: int
    failed: int
    """The number of rows that an exception left."""
    top_ns: int
    """The time of the outermost ranges whose CPU time is known, but not of those in a step with a span."""
    top_cpu_ns: int
    """The CPU time of these ranges."""


class Added(NamedTuple):
    """The result of adding a batch."""

    fates: Sequence[int]
    """The number of rows of each ``Fate``."""
    units: Sequence[UnitInBatch]
    planned: int
    """The number of rows that become spans or are folded."""


class UnitToDecide(NamedTuple):
    """A unit that is to be decided, or a part of one that goes on."""

    above: SpanContext
    budget: int
    """The number of spans that it may have."""
    start_ns: int
    end_ns: int
    """The end of the unit; it begins at ``start_ns``."""
    goes_on: bool
    tells_itself: bool
    """Whether the span above takes the sums of what was folded directly below it."""


class Decided(NamedTuple):
    """Units that were decided together, as tables. ``unit`` is a place among them. Spans are numbered, the kept ranges first.

    It keeps no names but its own, because a program may make new ones, and it may wait for an exporter.
    """

    plan: SpanPlan
    """The plan of the kept ranges, parents first."""
    sums: Table
    """The sums of what was folded into one span, or (``of_unit``) in the whole unit, whose first span tells it: ``unit``,
    ``span`` (a number; -1: the root above), ``ranges``, ``duration_ns``, and ``top_end``, where its names end in ``top``."""
    top: Table
    """Names that took the most self time: ``name``, ``count``, ``self_ns``."""
    summaries: Table
    """Spans for the ranges of a call path."""
    names: Mapping[int, str]
    """The names in the tables, by number, as ``NumberedNames`` has them."""
    single: Batch
    """The rows of those summaries that stand for one range and have a ``row``, in their order: they aren't folded."""
    further: dict[int, dict[str, Any]]
    """Attributes of whole units, by the numbers of their first spans."""

    @property
    def first_spans(self) -> Mapping[int, int]:
        """The number of the span of each unit that is seen first: the longest one directly in it, or the root above (-1)."""
        sums = self.sums[self.sums["of_unit"] != 0]
        return dict(zip(sums["unit"].tolist(), sums["span"].tolist(), strict=True))


class Stage:
    """Open units, for one thread at a time.

    Where it finds no memory, it raises MemoryError, and isn't to be used any more.

    Args:
        budget: how many ranges a unit keeps at most.
        most_waiting: the number of rows of a unit, at least one, that wait before they are compared.
    """

    def __init__(
        self, budget: int, most_waiting: int = MOST_WAITING, *, torch_names: bool = False
    ) -> None:
        self._stage, self._torch_names = _native.Stage(budget, most_waiting), torch_names
        self.waiting = WaitingRows(self._kept)
        """The rows that are held because they may be kept."""
        self.forget_names()

    def add(self, batch: Batch, roots: Mapping[int, SpanContext]) -> Added:
        """Add a batch; returns what became of its rows.

        ``roots``: the root span of ours above outermost ranges without a span around them, where that trace is recorded.
        """
        fates, units, row, *_ = self._stage.add(
            self._given(batch, roots, folds=True), current_key()
        )
        rows = np.frombuffer(row, np.int64)
        self.waiting.add(batch, rows)
        return _added(batch, roots, fates, units, len(rows))

    def plan(self, batch: Batch, roots: Mapping[int, SpanContext]) -> tuple[SpanPlan, Added]:
        """Plan a batch in which each row becomes a span of its own and nothing waits."""
        raw = self._stage.add(self._given(batch, roots, folds=False), current_key())
        row, parent, unit = (
            np.frombuffer(raw[2], np.int64),
            np.frombuffer(raw[3], np.uint64),
            np.frombuffer(raw[4], np.int64),
        )
        links, traces = np.frombuffer(raw[5], _LINK), np.frombuffer(raw[6], _TRACE)
        added = _added(batch, roots, raw[0], raw[1], len(row))
        return self._plan(
            batch, row, parent, unit, [one.above for one in added.units], links, traces
        ), added

    def decide(self, units: Sequence[UnitToDecide], rows: int) -> Decided:
        """Decide units, each once, and forget the rows of those that don't go on. ``rows`` is how many they have together."""
        given = np.array([(*_above(one.above), *one[1:]) for one in units], _TO_DECIDE)
        raw = self._stage.decide(given, current_key(), rows > MANY_ROWS)
        kept, sums, top, summaries = [
            np.frombuffer(raw[at], kind) for at, kind in enumerate((_KEPT, _SUMS, _TOP, _SUMMARY))
        ]
        # A backward node is as long as the range around it.
        times = {name: np.ascontiguousarray(kept[name]) for name in ("start_ns", "end_ns")}
        batch, parent = self.waiting.take(kept["row"], **times), kept["parent"]
        single = self.waiting.take(summaries["row"][summaries["row"] >= 0])
        if any(one.goes_on for one in units):
            parent = self._with_open_roots(parent, batch)
        above, traces = [one.above for one in units], np.frombuffer(raw[4], _TRACE)
        plan = self._plan(
            batch,
            np.arange(len(kept)),
            parent,
            kept["unit"].astype(np.int64),
            above,
            kept["link"],
            traces,
        )
        used = {
            number
            for column in (summaries["name"], summaries["module"], top["name"])
            for number in column.tolist()
        }
        names = {number: self._names.values[number] for number in used}
        return Decided(plan, sums, top, summaries, names, single, {})

    def _plan(
        self,
        batch: Batch,
        row: NDArray[np.int64],
        parent: NDArray[np.uint64],
        above: NDArray[np.int64],
        units: Sequence[SpanContext],
        links: Table,
        traces: Table,
    ) -> SpanPlan:
        linked_id, linked_above, spans = (
            empty_column(np.uint64, len(row)),
            empty_column(np.int64, len(row)),
            units,
        )
        if len(
            traces
        ):  # else no links: each operation of numpy's on many rows is a wait for the GIL
            spans = [
                *units,
                *[
                    SpanContext(high << 64 | low, 0, False, SAMPLED)
                    for high, low in traces.tolist()
                ],
            ]
            linked_id = links["span_id"]
            linked_above = np.where(linked_id != 0, links["trace"].astype(np.int64) + len(units), 0)
        return SpanPlan(
            batch, row, parent, above, linked_id, linked_above, spans, self._torch_names
        )

    def _with_open_roots(self, parent: NDArray[np.uint64], batch: Batch) -> NDArray[np.uint64]:
        """The parents; ranges below no kept one get their outermost range if it is open, as it will be kept when it comes."""
        lower = np.flatnonzero(
            (parent == 0) & (batch.parent != 0) & (batch.flags & OVERLAPPING == 0)
        )
        is_open = np.frombuffer(self._stage.owe(batch.root[lower])[0], np.bool_)
        parents: NDArray[np.uint64] = parent.copy()
        parents[lower[is_open]] = batch.root[lower[is_open]]
        return parents

    def forget_names(self) -> None:
        """Forget the names, none of which is needed any more."""
        self._names = NumberedNames(torch_names=self._torch_names)
        self.has_many_names = False
        """Whether a program has made so many names that all units should be decided in part, to forget them."""

    def _kept(self) -> NDArray[np.int64]:
        return np.frombuffer(self._stage.kept()[0], np.int64)

    def _given(
        self, batch: Batch, roots: Mapping[int, SpanContext], *, folds: bool
    ) -> tuple[Any, ...]:
        announced = tuple(
            [batch.opened.columns[name] for name in ("source", "event_id", "context")]
        )
        rows = [
            (*_above(one), int(fate_of(one)), int(one.flags) & _STEP != 0) for one in batch.contexts
        ]
        contexts = np.array(rows, _CONTEXT)
        of_roots = np.array([(root, *_above(roots[root])) for root in sorted(roots)], _ROOT)
        names, in_order = self._names, batch.closed < len(batch)
        if batch.names is not names.seen or len(batch.names) > len(names.numbers):
            names.number_all(batch.names)
            self.has_many_names = len(names.values) > MAX_NAMES
        threads = np.array([track.thread_id for track in batch.tracks], np.uint64)
        return (
            batch,
            announced,
            contexts,
            of_roots,
            threads,
            names.numbers,
            names.shown,
            names.modules,
            in_order,
            folds,
        )


def _above(span: SpanContext | SpanContextRef) -> tuple[int, ...]:
    return span.trace_id >> 64, span.trace_id & _LOW, span.span_id


def _added(
    batch: Batch, roots: Mapping[int, SpanContext], fates: Any, units: Any, planned: int
) -> Added:
    found = []
    for _, _, _, root, context, *rest in np.frombuffer(units, _IN_BATCH).tolist():
        above = span_context(batch.contexts[context]) if context >= 0 else roots[root]
        found.append(UnitInBatch(above, *rest))
    return Added(np.frombuffer(fates, np.int64).tolist(), found, planned)
