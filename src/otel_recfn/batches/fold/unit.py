"""One unit: keeps the longest of its ranges, and folds the others into the nearest kept one around them.

Ranges wait until there are enough of them, or the unit ends; then they are compared with each other and with those that were
kept before. So a unit that ends soon, as most do, is decided once, when it is known how many spans it may have.

A range comes when it has ended, so what lies in it came before. It ranks by its duration, and of equal ones the one that began
first ranks higher; but higher than all that lies in it, so that who is kept has all that is around it.

Asynchronous ranges may end after what they lie in: they, and what comes after its parent, lie directly in the unit. So does,
where a unit is finished in parts, what lies in a range that comes with a later part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from otel_recfn.batches.fold.folded import Folded, FoldedTree
from otel_recfn.batches.fold.wrapping import wrapped
from otel_recfn.model.events import ORDINAL_BITS, OVERLAPPING, EventFlag

PATHS_OF_A_SPAN = 128
PATHS_OF_A_UNIT = 1024
MAX_AWAITED = 1 << 16
"""Of more ranges that parts of a unit were handed on of before they came, the self times are forgotten."""
FORCED = 1 << 62
"""Ranks above every duration."""
LINKABLE = 1 << 31
"""A flag of a row, beside those of EventFlag: others may link to it."""

Rank = tuple[int, int, int]
NOTHING: Rank = (-1, 0, 0)
SHOWN = int(EventFlag.SHOWN)


class Range(NamedTuple):
    """What folding needs to know of a range that has ended. Times in nanoseconds."""

    event_id: int
    parent: int
    """The range that it lies in; 0 for none in this unit."""
    name: int
    start_ns: int
    duration_ns: int
    flags: int
    row: int = 0
    """Its number, as ``Fold.add`` was told."""


@dataclass(eq=False, slots=True)
class Held:
    """A range that isn't folded, or not yet."""

    range: Range
    parent: int = 0
    """A range that it lies in and that may be kept with it; 0 where there is none."""
    children_ns: int = 0
    folded: FoldedTree | None = None
    """What was folded into it."""
    highest: Rank = NOTHING
    """The highest rank in it."""
    rank: Rank = NOTHING
    tree: FoldedTree | None = None
    """Of a range that was folded: where."""
    place: Folded | None = None

    @property
    def forced(self) -> bool:
        """Whether it is kept whatever the budget is."""
        return self.rank[0] == FORCED

    @property
    def self_ns(self) -> int:
        """Without what lies in it in its thread; an asynchronous range has none."""
        return 0 if self.range.flags & OVERLAPPING else wrapped(self.range.duration_ns - self.children_ns)


@dataclass(slots=True)
class _Awaited:
    """What came of a range that hasn't come itself."""

    folded: FoldedTree | None = None
    children_ns: int = 0


@dataclass(slots=True)
class UnitFold:
    """One unit's ranges.

    Args:
        budget: how many are kept.
        min_duration_ns: shorter ones are not kept.
        most_waiting: so many wait before they are compared.
    """

    budget: int
    min_duration_ns: int
    most_waiting: int
    rows: int = 0
    """How many came since the last part was finished."""
    held: list[Held] = field(default_factory=list)
    """In the order in which they came: those that were kept when ranges were compared last, and those that wait."""
    needed: list[Range] = field(default_factory=list)
    """Those that are kept whatever the budget is."""
    folded: FoldedTree = field(default_factory=lambda: FoldedTree(PATHS_OF_A_UNIT))
    """What was folded directly into the unit."""
    _compared: int = 0
    """How many of ``held`` don't wait."""
    _awaited: dict[int, _Awaited] = field(default_factory=dict)
    _by_id: dict[int, Held] = field(default_factory=dict)

    def add(self, one: Range) -> None:
        """The next range that has ended."""
        if len(self.held) - self._compared >= self.most_waiting:
            self._compare(self.budget, parents_may_come=True)
        self.held.append(Held(one))
        if one.flags & SHOWN:
            self.needed.append(one)
        self.rows += 1

    def finish(self, budget: int) -> tuple[list[Held], FoldedTree]:
        """Take what is kept, outermost ranges first, and what was folded directly into the unit.

        Of a budget that is too small for all, a quarter is left for sums.

        Args:
            budget: how many spans it may have.
        """
        shown = budget if self.rows <= budget else max(0, budget - max(1, budget // 4))
        self._compare(min(shown, self.budget), parents_may_come=False)
        kept, folded = sorted(self.held, key=_rank_of, reverse=True), self.folded
        for one in kept:
            one.parent = one.parent if self._by_id.get(one.parent) in kept else 0
        owed = [(parent, around.children_ns) for parent, around in self._awaited.items() if around.children_ns]
        self._awaited = {parent: _Awaited(children_ns=time) for parent, time in owed[:MAX_AWAITED]}
        self.held, self.needed, self.rows, self.folded, self._compared = [], [], 0, FoldedTree(PATHS_OF_A_UNIT), 0
        self._by_id = {}
        return kept, folded

    def _compare(self, budget: int, *, parents_may_come: bool) -> None:
        """Keep so many of what is held, and fold the others."""
        self._note_parents()
        if not parents_may_come:
            self._settle()
        self._rank()
        kept = self._longest(budget)
        for one in reversed(self.held):  # what is around a range comes after it
            if one not in kept:
                self._fold(one, kept, parents_may_come)
        self.held = [one for one in self.held if one in kept]
        self._compared = len(self.held)

    def _note_parents(self) -> None:
        """Of those that wait: which of the others each lies in, and how long these were."""
        self._by_id = {one.range.event_id: one for one in reversed(self.held)}
        earlier = {one.range.event_id for one in self.held[: self._compared]}
        for one in self.held[self._compared :]:
            event_id, parent = one.range.event_id, one.range.parent
            earlier.add(event_id)
            came = self._awaited.pop(event_id, _Awaited()) if self._by_id[event_id] is one else _Awaited()
            one.children_ns, one.folded = wrapped(one.children_ns + came.children_ns), came.folded
            if not one.range.flags & OVERLAPPING and parent not in earlier:
                one.parent = parent
            if one.parent and one.parent >> ORDINAL_BITS == event_id >> ORDINAL_BITS:
                around = self._by_id.get(parent) or self._around(parent)
                around.children_ns = wrapped(around.children_ns + one.range.duration_ns)

    def _settle(self) -> None:
        """What belongs to ranges that haven't come lies directly in the unit."""
        for around in self._awaited.values():
            if around.folded is not None:
                self.folded.merge(around.folded)
                around.folded = None

    def _rank(self) -> None:
        for one in self.held:
            one.highest = NOTHING
        for one in self.held:
            own = FORCED if one.range.flags & SHOWN else one.range.duration_ns
            if own < self.min_duration_ns:
                own = -1
            duration, order, height = one.highest
            is_first = self._by_id[one.range.event_id] is one
            one.rank = max((own, -one.range.event_id, 0), (duration, order, height + 1)) if is_first else NOTHING
            if one.parent and (around := self._by_id.get(one.parent)) is not None:
                around.highest = max(around.highest, one.rank)

    def _longest(self, budget: int) -> set[Held]:
        forced = {one for one in self.held if one.forced}
        others = [one for one in self.held if not one.forced and one.rank[0] >= 0]
        return forced | set(sorted(others, key=_rank_of, reverse=True)[: max(0, budget - len(forced))])

    def _fold(self, one: Held, kept: set[Held], parents_may_come: bool) -> None:
        around = self._by_id.get(one.parent) if one.parent else None
        if around is not None and around not in kept:
            tree, above = around.tree, around.place
        else:
            tree, above = self._tree(one.parent, around, parents_may_come), None
        assert tree is not None
        one.tree, one.place = (
            tree,
            tree.add_range(above, one.range.name, one.range.event_id, one.range.start_ns, one.range.duration_ns, one.self_ns),
        )
        if one.range.flags & LINKABLE:
            tree.linkable.append(one.range.event_id)
        if one.folded is not None:
            tree.merge_below(one.place, one.folded)

    def _tree(self, parent: int, around: Held | None, parents_may_come: bool) -> FoldedTree:
        """What a range with that parent, which isn't folded itself, is folded into."""
        holder = around if around is not None else self._around(parent) if parent and parents_may_come else None
        if holder is None:
            return self.folded
        if holder.folded is None:
            holder.folded = FoldedTree(PATHS_OF_A_SPAN)
        return holder.folded

    def _around(self, parent: int) -> _Awaited:
        holder = self._awaited.get(parent)
        if holder is None:
            holder = self._awaited[parent] = _Awaited()
        return holder


def _rank_of(one: Held) -> Rank:
    return one.rank
