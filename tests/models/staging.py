"""From batches to decided units, to be read: which rows become spans in which unit, what they link to, what is told of them.

Folding and telling are models of their own (``folding.py``, ``telling.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from models.finished import FinishedUnits
from models.folded_paths import wrapped
from models.folding import FoldModel, PlannedRanges
from models.telling import Told, UnitsToTell, told_of_model
from otel_recfn.batches.span_names import NumberedNames
from otel_recfn.batches.stage import Fate, UnitInBatch, UnitToDecide, fate_of, span_context
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import (
    ORDINAL_BITS,
    OVERLAPPING,
    ContextFlag,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
)
from otel_recfn.support.span_ids import span_id

Above = tuple[int, int]
"""The trace id and the span id of the span above a unit."""


class Row(NamedTuple):
    """A row that becomes a span."""

    place: int
    event: Event
    above: SpanContext
    parent: int


@dataclass
class Forward:
    """A forward range, and the span above it."""

    event_id: int
    start_ns: int
    above: SpanContext


@dataclass
class Model:
    """As ``Stage``.

    Args:
        how: as its settings.
    """

    how: tuple[int, int]
    numbers: dict[Above, int] = field(default_factory=dict)
    given: int = 0
    forward: dict[tuple[int, int], Forward] = field(default_factory=dict)
    links: dict[int, Forward] = field(default_factory=dict)
    """By the number of the row that links."""
    sent: set[int] = field(default_factory=set)
    """Event ids of ranges that became spans."""
    open: set[int] = field(default_factory=set)
    """Outermost ranges that were announced and have not come."""
    owed: set[int] = field(default_factory=set)
    """Of these, those with spans below them that were handed on."""
    names: NumberedNames = field(default_factory=lambda: NumberedNames(torch_names=False))
    rows: list[Event] = field(default_factory=list)
    """By number."""

    def __post_init__(self) -> None:
        self.fold = FoldModel(*self.how)

    def plan(
        self, batch: Batch, roots: Mapping[int, SpanContext]
    ) -> tuple[list[int], list[UnitInBatch], list[Row]]:
        """How many rows have each fate, what is told of each unit, and the rows that become spans."""
        units: dict[Above, list[int]] = {}
        contexts: dict[Above, SpanContext] = {}
        fates = [0] * len(Fate)

        def unit_below(above: SpanContext) -> list[int]:
            key = above.trace_id, above.span_id
            contexts.setdefault(key, above)
            if key not in self.numbers:
                self.given += 1
                self.numbers[key] = self.given
            return units.setdefault(key, [0, 0, (1 << 63) - 1, 0, 0, 0, 0, 0])

        for one in batch.opened:
            ref = batch.contexts[one.context]
            if one.source != EventSource.STEP and fate_of(ref) == Fate.IN_SPAN:
                unit_below(span_context(ref))[0] += 1
        rows = []
        for place, event in in_order(batch):
            fate, above = fate_and_above(event, roots)
            fates[fate] += 1
            if above is None:
                continue
            in_step = event.context.flags & ContextFlag.STEP and event.parent == event.root
            rows.append(Row(place, event, above, 0 if in_step else event.parent))
            sums = unit_below(above)
            sums[1] += 1
            sums[2], sums[3] = min(sums[2], event.start_ns), max(sums[3], event.end_ns)
            sums[4] += event.parent == 0
            sums[5] += bool(event.flags & EventFlag.ERROR)
            if event.parent == 0 and event.cpu_time_ns >= 0:
                sums[6], sums[7] = (
                    wrapped(sums[6] + event.duration_ns),
                    wrapped(sums[7] + event.cpu_time_ns),
                )
        return fates, [UnitInBatch(contexts[key], *sums) for key, sums in units.items()], rows

    def add(
        self, batch: Batch, roots: Mapping[int, SpanContext]
    ) -> tuple[list[int], list[UnitInBatch], int]:
        """The same, and how many rows become spans; they are folded."""
        self.open |= {one.event_id for one in batch.opened if one.source != EventSource.STEP}
        outermost = {
            one.event_id for one in batch.events() if one.parent == 0 and one.kind == RowKind.RANGE
        }
        self.open -= outermost
        fates, units, rows = self.plan(batch, roots)
        self.link(rows)
        self.names.number_all(batch.names)
        numbers = self.names.numbers
        called = np.array(
            [self.called(row.event, numbers, batch, row.place) for row in rows], np.uint32
        ).reshape(-1, 4)
        unit = np.array(
            [self.numbers[row.above.trace_id, row.above.span_id] for row in rows], np.uint32
        )
        place, parent = (
            np.array([row.place for row in rows], np.int64),
            np.array([row.parent for row in rows], np.uint64),
        )
        shown = np.array(sorted(self.owed), np.uint64)
        self.fold.add_planned(
            PlannedRanges(batch, place, parent, unit, *called.T, shown), len(self.rows)
        )
        self.rows += [row.event for row in rows]
        self.owed -= outermost
        return fates, units, len(rows)

    def called(
        self, event: Event, numbers: Any, batch: Batch, place: int
    ) -> tuple[int, int, int, int]:
        """What a row is added up by and shown as, and the path of the module that it is a call of, without numbers, too."""
        name, module = (
            int(numbers[batch.name[place]]),
            int(numbers[batch.module[place]]) if event.module else 0,
        )
        if event.source == EventSource.MODULE:
            kind = self.names.shown[name]
            return kind, kind, module, self.names.modules[module] if module else 0
        return name, self.names.shown[name] if event.source == EventSource.TORCH else name, 0, 0

    def link(self, rows: Sequence[Row]) -> None:
        """Backward ranges to forward ones of the same number, the one that started last."""
        for row in rows:
            event = row.event
            key = event.thread.thread_id, event.sequence_nr
            if (
                has_number(event)
                and event.scope != RecordScope.BACKWARD_FUNCTION
                and not event.forward_thread_id
            ):
                known = self.forward.get(key)
                if known is None or event.start_ns >= known.start_ns:
                    self.forward[key] = Forward(event.event_id, event.start_ns, row.above)
        for number, row in enumerate(rows, len(self.rows)):
            event = row.event
            if (
                has_number(event)
                and event.scope == RecordScope.BACKWARD_FUNCTION
                and event.forward_thread_id
            ):
                found = self.forward.get((event.forward_thread_id, event.sequence_nr))
                if found is not None:
                    self.links[number] = found

    def decide(
        self, units: Sequence[UnitToDecide]
    ) -> tuple[list[tuple[Any, ...]], Told, list[tuple[Any, ...]]]:
        """What each kept range is told by, what is told of the folded ones, and the summaries."""
        number = [self.numbers.get((one.above.trace_id, one.above.span_id), 0) for one in units]
        budget, goes_on = [[getattr(one, name) for one in units] for name in ("budget", "goes_on")]
        done = self.fold.finish(
            number, budget, [one.end_ns - one.start_ns for one in units], goes_on
        )
        kept = [
            self.kept(*one)
            for one in zip(
                done.kept_row.tolist(),
                done.kept_start_ns.tolist(),
                done.kept_end_ns.tolist(),
                strict=True,
            )
        ]
        left = np.array([one.budget for one in units], np.int64) - np.bincount(
            done.kept_unit, minlength=len(units)
        )
        tells = np.array([one.tells_itself for one in units], np.uint8)
        of_units = [
            np.array([getattr(one, name) for one in units], np.int64)
            for name in ("start_ns", "end_ns")
        ]
        told = told_of_model(
            done, UnitsToTell(*of_units, left, np.array(self.fold.least_ns, np.int64), tells)
        )
        ids = [span_id(number) for number in done.kept.tolist()]
        first_id = [span_id(number) for number in done.path_first_id.tolist()]
        parents = done.kept_parent.tolist()
        if any(goes_on):
            parents = [self.around(number, one) for number, one in zip(parents, kept, strict=True)]
        self.sent |= {one.event_id for one in kept}
        links = [self.linked(number) for number in done.kept_row.tolist()]
        of_kept = zip(kept, parents, done.kept_unit.tolist(), links, strict=True)
        summaries = []
        for place, path in enumerate(told.path.tolist()):
            unit, holder, parent = (
                int(column[at])
                for column, at in (
                    (done.path_unit, path),
                    (done.path_holder, path),
                    (told.parent, place),
                )
            )
            above = ids[holder] if holder >= 0 else units[unit].above.span_id
            summaries.append((
                first_id[path], first_id[parent] if parent >= 0 else above, unit, self.names.values[int(done.path_shown[path])],
                *[int(getattr(done, f"path_{name}")[path]) for name in ("count", "total_ns", "shortest_ns", "longest_ns")],
                int(done.path_cpu_time_ns[path]),
                *[int(getattr(told, name)[place]) for name in ("start_ns", "end_ns")],
                self.module(int(told.module[place])), self.row_of(done, path),
            ))  # fmt: skip
        for one in units:
            if not one.goes_on:
                self.numbers.pop((one.above.trace_id, one.above.span_id), None)
        return list(of_kept), told, summaries

    def kept(self, number: int, start_ns: int, end_ns: int) -> Event:
        """A row that is kept; that of a backward node is as long as the range around it."""
        return replace(self.rows[number], start_ns=start_ns, end_ns=end_ns)

    def module(self, number: int) -> str:
        return self.names.values[number] if number else ""

    def row_of(self, done: FinishedUnits, path: int) -> Event | None:
        """Of a path of one range."""
        number = int(done.path_first_row[path])
        return self.rows[number] if done.path_count[path] == 1 and number >= 0 else None

    def around(self, parent: int, one: Event) -> int:
        """The range that a kept one is told to lie in: its outermost one where that is open, and nothing between is kept."""
        if parent or not one.parent or one.flags & OVERLAPPING or one.root not in self.open:
            return parent
        self.owed.add(one.root)
        return one.root

    def linked(self, number: int) -> tuple[int, int]:
        """The span that a row links to, and its trace."""
        link = self.links.get(number)
        if link is None:
            return 0, 0
        return span_id(
            link.event_id
        ) if link.event_id in self.sent else link.above.span_id, link.above.trace_id


def in_order(batch: Batch) -> list[tuple[int, Event]]:
    """The rows as they stand; where some lie in ranges of other threads and stand after them, in the order of their ends."""
    rows = list(enumerate(batch.events()))
    ends = [event.end_ns for _, event in rows]
    elsewhere = any(
        event.parent and event.parent >> ORDINAL_BITS != event.event_id >> ORDINAL_BITS
        for _, event in rows
    )
    if batch.closed < len(batch) or ends == sorted(ends) or not elsewhere:
        return rows
    return sorted(rows, key=lambda row: row[1].end_ns)


def fate_and_above(
    event: Event, roots: Mapping[int, SpanContext]
) -> tuple[Fate, SpanContext | None]:
    """What becomes of a row, and the span above its outermost range."""
    fate = fate_of(event.context)
    if event.kind != RowKind.RANGE:
        return Fate.OTHER_KIND, None
    if fate == Fate.IN_SPAN:
        of_step = (
            event.source == EventSource.STEP
            and event.context.flags & ContextFlag.STEP
            and not event.parent
        )
        return (Fate.OTHER_KIND, None) if of_step else (fate, span_context(event.context))
    if fate == Fate.ROOTLESS:
        return (fate, roots[event.root]) if event.root in roots else (Fate.UNSAMPLED, None)
    return fate, None


def has_number(event: Event) -> bool:
    """Whether it has a sequence number."""
    return event.kind == RowKind.RANGE and 0 <= event.sequence_nr < 1 << ORDINAL_BITS
