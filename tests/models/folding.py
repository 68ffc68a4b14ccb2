"""Folding, to be read: which ranges of a unit are kept, and the sums of the others by their path of names.

A unit's ranges wait until there are enough of them; then all that are held are compared, the longest are kept, and the others
are folded into the nearest kept range around them. When it ends, all are kept that took a thousandth of it, where that fits and
leaves little out; else those that its tree of calls has spans of their own for (``call_tree.py``).
The sums themselves: ``folded_paths.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.call_tree import choose_tree
from models.finished import FINISHED_TYPES, FinishedUnits
from models.folded_paths import Path, Tree, wrapped
from otel_recfn.batches.stage import MOST_WAITING
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, OVERLAPPING, EventFlag

LEAST_SHARE = 1000
"""What took less than one in so many of its unit's time is no span of its own."""
LEFT_OUT = 10
"""All others are, where those that then are none took less than one in so many."""
MAX_AWAITED = 1 << 16
"""Of more ranges that parts of a unit were handed on of before they came, the self times are forgotten."""
LINKABLE = 1 << 31
"""A flag of a program's row, beside those of EventFlag: it has a sequence number."""
SHOWN = int(EventFlag.SHOWN)
FORCED, FAILED = 1 << 62, 1 << 61
"""One ranks above every duration, the other is added to the duration of a range that failed."""
Rank = tuple[int, int, int]
NOTHING: Rank = (-1, 0, 0)


class Range(NamedTuple):
    """One that has ended."""

    event_id: int
    parent: int
    name: int
    start_ns: int
    duration_ns: int
    flags: int
    cpu_time_ns: int
    row: int
    shown: int
    module: int
    modules: int

    @property
    def in_compilation(self) -> bool:
        """Whether it is no span unless it failed."""
        return bool(self.flags & EventFlag.IN_COMPILATION)

    @property
    def comes_first(self) -> bool:
        """Whether it is kept, whatever it took."""
        return bool(self.flags & (SHOWN | EventFlag.ERROR)) or self.duration_ns >= FAILED

    def is_around(self, name: int) -> bool:
        """Whether it is the range around the backward node of that name."""
        return self.shown == name != self.name


def own_rank(one: Range, least_ns: int) -> int:
    """Without what lies in it."""
    if one.flags & SHOWN:
        return FORCED
    duration = min(one.duration_ns, FAILED - 1)
    if one.flags & EventFlag.ERROR:
        return FAILED + duration
    return duration if duration >= least_ns and not one.flags & EventFlag.IN_COMPILATION else -1


@dataclass(eq=False)
class Held:
    """A range that isn't folded, or not yet."""

    range: Range
    parent: int = 0
    """A range that it lies in and that may be kept with it; 0 where there is none."""
    children_ns: int = 0
    folded: Tree | None = None
    highest: Rank = NOTHING
    """The highest rank in it."""
    rank: Rank = NOTHING
    place: tuple[Tree, Path] | None = None
    """Of a range that was folded: where."""
    node: Held | None = None
    """Of a range around a backward node the node, where both are kept: they are told as one."""

    @property
    def told(self) -> Range:
        """What its span is of."""
        return self.range if self.node is None else self.node.range

    def sums(self, row: int) -> Path:
        """Of it alone."""
        it, duration = self.range, self.range.duration_ns
        first = (it.start_ns, it.event_id, row)
        called, times = (
            (it.name, it.shown, it.module, it.modules),
            (duration, self.self_ns, duration, duration, it.cpu_time_ns),
        )
        return Path(*called, 1, *times, first, it.in_compilation)

    @property
    def self_ns(self) -> int:
        """Without what lies in it in its thread; an asynchronous range has none."""
        return (
            0
            if self.range.flags & OVERLAPPING
            else wrapped(self.range.duration_ns - self.children_ns)
        )


@dataclass
class Awaited:
    """What came of a range that hasn't come itself."""

    folded: Tree | None = None
    children_ns: int = 0


class Unit:
    """One unit's ranges."""

    def __init__(self, budget: int, most_waiting: int) -> None:
        self.budget, self.most_waiting = budget, max(1, most_waiting)
        self.awaited: dict[int, Awaited] = {}
        self.least_ns = 0
        """Sums of what took less have no span."""
        self.begin_part()

    def begin_part(self) -> None:
        self.compared = 0
        self.held: list[Held] = []
        """Those that were kept when ranges were compared last, and those that wait."""
        self.folded = Tree()
        self.by_id: dict[int, Held] = {}

    def add(self, one: Range) -> None:
        if len(self.held) - self.compared >= self.most_waiting:
            self.note_parents()
            self.rank(0)
            self.fold_all(self.highest(self.budget), parents_may_come=True)
        self.held.append(Held(one))

    def finish(self, budget: int, duration_ns: int) -> tuple[list[Held], Tree]:
        """What is kept, outermost ranges first, and what lies directly in the unit."""
        spans = min(budget, self.budget)
        self.note_parents()
        self.least_ns = duration_ns // LEAST_SHARE
        long_ones = [
            one
            for one in self.held
            if one.range.duration_ns >= self.least_ns and not one.range.in_compilation
        ]
        kept, fits = None, len(long_ones) <= spans
        if fits:
            self.rank(self.least_ns)
            kept = self.highest(spans)
        if kept is None or self.left_out_ns(kept) > duration_ns // LEFT_OUT:
            self.rank(0)
            kept = self.highest(0)
            self.settle()
            if spans > 0:
                self.least_ns = choose_tree(self, kept, spans, duration_ns)
        self.settle()
        self.find_nodes(kept)
        self.fold_all(kept, parents_may_come=False)
        self.join_nodes()
        found, folded = sorted(self.held, key=lambda one: one.rank, reverse=True), self.folded
        for one in found:
            around = self.by_id.get(one.parent)
            one.parent = around.told.event_id if around is not None and around in kept else 0
        owed = [
            (parent, around.children_ns)
            for parent, around in sorted(self.awaited.items())
            if around.children_ns
        ]
        self.awaited = {parent: Awaited(children_ns=time) for parent, time in owed[:MAX_AWAITED]}
        self.begin_part()
        return found, folded

    def left_out_ns(self, kept: set[Held]) -> int:
        """How long those took that are not kept and lie in kept ones or directly in the unit, but for what is never kept."""
        trees = [
            self.folded,
            *[one.folded for one in self.held[: self.compared] if one.folded is not None],
        ]
        return wrapped(
            sum(tree.outer_ns() for tree in trees)
            + sum(
                one.range.duration_ns
                for one in self.held
                if one not in kept
                and not one.range.in_compilation
                and ((around := self.around(one)) is None or around in kept)
            )
        )

    def around(self, one: Held) -> Held | None:
        """What it lies in, if that is held."""
        return self.by_id.get(one.parent) if one.parent else None

    def settle(self) -> None:
        """What belongs to ranges that haven't come lies directly in the unit."""
        for _, awaited in sorted(self.awaited.items()):
            if awaited.folded is not None:
                self.folded.merge(self.folded.root, awaited.folded)
                awaited.folded = None

    def find_nodes(self, kept: set[Held]) -> None:
        """A backward node is kept where the range around it is."""
        for one in self.held:
            around = self.around(one)
            if around is None or around not in kept or not around.range.is_around(one.range.name):
                continue
            is_apart = around.range.comes_first and not one.range.comes_first
            if not is_apart and around.node is None:
                around.node = one
                kept.add(one)

    def join_nodes(self) -> None:
        """The span has the place of the range around, and all else of the node."""
        for one in self.held:
            if (node := one.node) is not None:
                tree = one.folded = one.folded or Tree()
                path = tree.add(tree.root, one.sums(-1))
                path.total_ns = wrapped(path.total_ns - one.range.duration_ns)
                one.children_ns = wrapped(
                    one.range.duration_ns - node.range.duration_ns + node.children_ns
                )
                if node.folded is not None:
                    tree.merge(tree.root, node.folded)
        self.held = [one for one in self.held if one not in [other.node for other in self.held]]

    def fold_all(self, kept: set[Held], *, parents_may_come: bool) -> None:
        """All but those that are kept."""
        for one in reversed(self.held):  # what is around a range comes after it
            if one not in kept:
                self.fold(one, kept, parents_may_come)
        self.held = [one for one in self.held if one in kept]
        self.compared = len(self.held)

    def note_parents(self) -> None:
        """Of those that wait: which of the others each lies in, and how long these were."""
        self.by_id = {one.range.event_id: one for one in reversed(self.held)}
        earlier = {one.range.event_id for one in self.held[: self.compared]}
        for one in self.held[self.compared :]:
            event_id, parent = one.range.event_id, one.range.parent
            earlier.add(event_id)
            came = self.awaited.pop(event_id, Awaited())
            one.children_ns, one.folded = wrapped(one.children_ns + came.children_ns), came.folded
            if not one.range.flags & OVERLAPPING and parent not in earlier:
                one.parent = parent
            if one.parent and one.parent >> ORDINAL_BITS == event_id >> ORDINAL_BITS:
                around = self.by_id.get(parent) or self.awaited.setdefault(parent, Awaited())
                around.children_ns = wrapped(around.children_ns + one.range.duration_ns)

    def rank(self, least_ns: int) -> None:
        """What was shown, what failed, then by duration, then the first begun; above all that lies in it."""
        for one in self.held:
            one.highest = NOTHING
        for one in self.held:
            duration, order, height = one.highest
            alone = (own_rank(one.range, least_ns), -one.range.event_id, 0)
            one.rank = max(alone, (duration, order, height + 1))
            if one.parent and (around := self.by_id.get(one.parent)) is not None:
                around.highest = max(around.highest, one.rank)

    def highest(self, budget: int) -> set[Held]:
        """So many, but all that were shown, and as many of those that failed as the unit may have at most."""
        by_rank = sorted(
            [one for one in self.held if one.rank[0] >= 0], key=lambda one: one.rank, reverse=True
        )
        forced, failed = [
            sum(one.rank[0] >= least for one in by_rank) for least in (FORCED, FAILED)
        ]
        return set(by_rank[: max(forced, budget, min(failed, self.budget))])

    def fold(self, one: Held, kept: set[Held], parents_may_come: bool) -> None:
        around = self.by_id.get(one.parent) if one.parent else None
        if around is not None and around not in kept:
            assert around.place is not None
            tree, above = around.place
        else:
            tree = self.tree_of(one.parent, around, parents_may_come)
            above = tree.root
        place = tree.add(above, one.sums(-1 if parents_may_come else one.range.row))
        one.place = tree, place
        if one.folded is not None:
            tree.merge(place, one.folded)

    def tree_of(self, parent: int, around: Held | None, parents_may_come: bool) -> Tree:
        """What a range with that parent, which isn't folded itself, is folded into."""
        holder: Held | Awaited | None = around
        if holder is None and parent and parents_may_come:
            holder = self.awaited.setdefault(parent, Awaited())
        if holder is None:
            return self.folded
        if holder.folded is None:
            holder.folded = Tree()
        return holder.folded


class PlannedRanges(NamedTuple):
    """Ranges that become spans, as they stand in their batch."""

    batch: Batch
    row: NDArray[np.int64]
    parent: NDArray[np.uint64]
    unit: NDArray[np.uint32]
    """The number of the unit."""
    name: NDArray[np.uint32]
    """The number that it is added up by; so are the next ones (``NumberedNames``)."""
    shown: NDArray[np.uint32]
    module: NDArray[np.uint32]
    modules: NDArray[np.uint32]
    forced: NDArray[np.uint64]
    """The event ids of ranges that rank above all."""


class FoldModel:
    """Open units, by number."""

    def __init__(self, budget: int, most_waiting: int = MOST_WAITING) -> None:
        self.how = budget, most_waiting
        self.units: dict[int, Unit] = {}
        self.least_ns: list[int] = []
        """Of those that were finished last, as ``Unit.least_ns``."""

    def add_planned(self, ranges: PlannedRanges, first_row: int) -> None:
        columns = [column.tolist() for column in columns_of(ranges)]
        for row, (number, *values, shown, module, modules) in enumerate(
            zip(*columns, strict=True), first_row
        ):
            self.units.setdefault(number, Unit(*self.how)).add(
                Range(*values, row, shown, module, modules)
            )

    def kept(self) -> np.ndarray:
        return np.array(
            sorted(held.range.row for one in self.units.values() for held in one.held), np.int64
        )

    def finish(
        self,
        units: Sequence[int],
        budgets: Sequence[int],
        durations_ns: Sequence[int],
        goes_on: Sequence[bool],
    ) -> FinishedUnits:
        self.least_ns = []
        columns: dict[str, list[Any]] = {name: [] for name in FINISHED_TYPES}
        for place, (number, budget, duration, more) in enumerate(
            zip(units, budgets, durations_ns, goes_on, strict=True)
        ):
            unit = self.units.get(number) or Unit(*self.how)
            kept, folded = unit.finish(budget, duration)
            self.least_ns.append(unit.least_ns)
            first = len(columns["kept"])
            for one in kept:
                it = one.range
                row = {
                    "": one.told.event_id, "_row": one.told.row, "_unit": place, "_parent": one.parent, "_self_ns": one.self_ns,
                    "_start_ns": it.start_ns, "_end_ns": wrapped(it.start_ns + it.duration_ns),
                    "_name": it.name, "_shown": it.shown, "_modules": it.modules,
                }  # fmt: skip
                _append(columns, {f"kept{name}": value for name, value in row.items()})
            _add_tree(columns, place, -1, folded)
            for holder, one in enumerate(kept, first):
                if one.folded is not None:
                    _add_tree(columns, place, holder, one.folded)
            if not more:
                self.units.pop(number, None)
        return FinishedUnits(
            **{name: np.array(column, FINISHED_TYPES[name]) for name, column in columns.items()}
        )


def columns_of(ranges: PlannedRanges) -> tuple[Any, ...]:
    """Their units, and what ``Range`` has of each."""
    batch, row = ranges.batch, ranges.row
    event_id, start_ns = batch.event_id[row], batch.start_ns[row]
    flags = batch.flags[row].copy()
    flags[np.isin(event_id, ranges.forced) | (flags & EventFlag.PARTIAL != 0)] |= np.uint32(SHOWN)
    duration_ns = np.maximum(batch.end_ns[row] - start_ns, 0)
    called = (ranges.shown, ranges.module, ranges.modules)
    cpu_time_ns = batch.cpu_time_ns[row]
    return (
        ranges.unit,
        event_id,
        ranges.parent,
        ranges.name,
        start_ns,
        duration_ns,
        flags,
        cpu_time_ns,
        *called,
    )


def _add_tree(columns: dict[str, list[Any]], unit: int, holder: int, tree: Tree) -> None:
    places: dict[tuple[int, ...], int] = {(): -1}
    for names, path in tree.root.paths():
        places[names] = len(columns["path_unit"])
        row = {
            "unit": unit, "holder": holder, "above": places[names[:-1]], "name": names[-1], "count": path.count,
            "total_ns": path.total_ns, "self_ns": path.self_ns, "shortest_ns": path.shortest_ns,
            "longest_ns": path.longest_ns, "first_ns": path.first[0], "first_id": path.first[1], "first_row": path.first[2],
            "shown": path.shown, "module": path.module, "modules": path.modules, "is_node": path.around is not None,
            "cpu_time_ns": path.cpu_time_ns, "in_compilation": path.in_compilation,
        }  # fmt: skip
        _append(columns, {f"path_{name}": value for name, value in row.items()})


def _append(columns: dict[str, list[Any]], row: dict[str, Any]) -> None:
    for name, value in row.items():
        columns[name].append(value)
