"""One unit: keeps the longest of its ranges, and folds the others into the nearest kept one around them.

A range comes when it has ended, so what lies in it came before. It ranks by its duration, and of equal ones the one that began
first ranks higher; but higher than whatever is kept in it, so that who is kept has all that is around it.

Asynchronous ranges may end after what they lie in: they, and what comes after its parent, lie directly in the unit. So does,
where a unit is finished in parts, what lies in a range that comes with a later part.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_recfn.batches.fold.folded import FoldedTree
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
NOTHING_KEPT: Rank = (-1, 0, 0)


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


@dataclass(slots=True)
class Kept:
    """A range that is a span, and what was folded into it."""

    range: Range
    parent: int
    rank: Rank
    self_ns: int
    folded: FoldedTree | None = None

    @property
    def forced(self) -> bool:
        """Whether it is kept whatever the budget is."""
        return self.rank[0] == FORCED


@dataclass(slots=True)
class _Awaited:
    """What came of a range that hasn't come itself."""

    folded: FoldedTree | None = None
    highest: Rank = NOTHING_KEPT
    """The highest rank that something kept in it has."""
    children_ns: int = 0


@dataclass(slots=True)
class UnitFold:
    """One unit's ranges.

    Args:
        budget: how many are kept.
        min_duration_ns: shorter ones are not kept.
    """

    budget: int
    min_duration_ns: int = 0
    rows: int = 0
    """How many came since the last part was finished."""
    kept: dict[int, Kept] = field(default_factory=dict)
    folded: FoldedTree = field(default_factory=lambda: FoldedTree(PATHS_OF_A_UNIT))
    """What was folded directly into the unit."""
    _heap: list[tuple[Rank, int]] = field(default_factory=list)
    """Ranks and event ids of those that may go."""
    _awaited: dict[int, _Awaited] = field(default_factory=dict)

    def add(self, one: Range) -> None:
        """The next range that has ended."""
        self.rows += 1
        came = self._awaited.pop(one.event_id, None) or _Awaited()
        new = Kept(one, self._parent(one), self._rank(one, came), self._self_ns(one, came), came.folded)
        if new.parent:
            self._note_in(new.parent, one)
        came_before = one.event_id in self.kept
        full = len(self.kept) >= self.budget and not new.forced
        if new.rank[0] < 0 or came_before or (full and (not self._heap or new.rank < self._heap[0][0])):
            self._fold(new)
        else:
            self._keep(new)
            self.shrink(self.budget)

    def shrink(self, budget: int) -> None:
        """Keep fewer of what came up to now."""
        while len(self.kept) > budget and self._heap:
            self._fold(self.kept.pop(heapq.heappop(self._heap)[1]))

    def finish(self, budget: int) -> tuple[list[Kept], FoldedTree]:
        """Take what is kept, outermost ranges first, and what was folded directly into the unit.

        Of a budget that is too small for all, a quarter is left for sums.

        Args:
            budget: how many spans it may have.
        """
        self.shrink(budget if self.rows <= budget else max(0, budget - max(1, budget // 4)))
        self._settle()
        kept, folded = sorted(self.kept.values(), key=_rank_of, reverse=True), self.folded
        self.kept, self._heap, self.rows, self.folded = {}, [], 0, FoldedTree(PATHS_OF_A_UNIT)
        return kept, folded

    def _parent(self, one: Range) -> int:
        return 0 if one.flags & OVERLAPPING or one.parent in self.kept else one.parent

    def _rank(self, one: Range, came: _Awaited) -> Rank:
        own = FORCED if one.flags & EventFlag.SHOWN else one.duration_ns if one.duration_ns >= self.min_duration_ns else -1
        duration, order, height = came.highest
        return max((own, -one.event_id, 0), (duration, order, height + 1))

    def _self_ns(self, one: Range, came: _Awaited) -> int:
        return 0 if one.flags & OVERLAPPING else one.duration_ns - came.children_ns

    def _note_in(self, parent: int, one: Range) -> None:
        if parent >> ORDINAL_BITS == one.event_id >> ORDINAL_BITS:
            self._around(parent).children_ns += one.duration_ns

    def _around(self, parent: int) -> _Awaited:
        around = self._awaited.get(parent)
        if around is None:
            around = self._awaited[parent] = _Awaited()
        return around

    def _keep(self, new: Kept) -> None:
        self.kept[new.range.event_id] = new
        if not new.forced:
            heapq.heappush(self._heap, (new.rank, new.range.event_id))
        if new.parent:
            around = self._around(new.parent)
            around.highest = max(around.highest, new.rank)

    def _fold(self, gone: Kept) -> None:
        one, holder = gone.range, self._holder(gone.parent)
        if one.flags & LINKABLE:
            holder.linkable.append(one.event_id)
        place = holder.place(one.name)
        place.add_range(one.event_id, one.start_ns, one.duration_ns, gone.self_ns)
        if gone.folded is not None:
            holder.merge_below(place, gone.folded)

    def _holder(self, parent: int) -> FoldedTree:
        """What a range with that parent is folded into."""
        if not parent:
            return self.folded
        holder = self.kept.get(parent) or self._around(parent)
        if holder.folded is None:
            holder.folded = FoldedTree(PATHS_OF_A_SPAN)
        return holder.folded

    def _settle(self) -> None:
        """What belongs to ranges that haven't come lies directly in the unit; only their self times are remembered."""
        awaited, self._awaited = self._awaited, {}
        for parent, around in awaited.items():
            if around.folded is not None:
                self.folded.merge(around.folded)
            if around.children_ns and len(self._awaited) < MAX_AWAITED:
                self._awaited[parent] = _Awaited(children_ns=around.children_ns)
        for one in self.kept.values():
            if one.parent not in self.kept:
                one.parent = 0


def _rank_of(one: Kept) -> Rank:
    return one.rank
