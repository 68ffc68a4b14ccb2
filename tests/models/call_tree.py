"""The tree of calls of a unit that took more ranges than it may have spans, to be read: which ranges are spans of their own.

Repeated siblings of one name are one sum, and what lies in them likewise. A range is a span of its own where it is alone on its
path of names, or stands out among the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.folded_paths import Path, Tree
    from models.folding import Held, Unit

FEWEST_SHARES, LEAST_SHARE = 50, 1000
"""What took less than one in so many, by the budget, has no place in the tree, but for what took most."""
PART_OF_BUDGET = 5
"""One in so many spans is used for that in any case, if it took a thousandth."""
STANDS_OUT, SHARES_OF_ONE, MOST_ROUNDS = 2, 5, 8
"""A range stands out that took so many times the mean of the others on its path, and so many times that least share."""


def least_of_path(duration_ns: int, budget: int) -> int:
    """Of a unit of that duration."""
    return duration_ns // min(max(budget, FEWEST_SHARES), LEAST_SHARE)


@dataclass(eq=False)
class CallPath:
    """Ranges of one path of names, below a range that is kept or in the unit. ``is_apart``: it is one that is kept."""

    name: int
    shown: int
    around: CallPath | None = None
    is_apart: bool = False
    in_compilation: bool = False
    count: int = 0
    total_ns: int = 0

    @property
    def is_node(self) -> bool:
        """Whether it is the backward node that the range around it is for."""
        return (
            self.around is not None
            and self.around.shown == self.name
            and self.around.shown != self.around.name
        )

    @property
    def home(self) -> CallPath:
        """Where what lies in it lies."""
        return self.around if self.around is not None and self.is_node else self

    def add(self, count: int, total_ns: int) -> None:
        self.count, self.total_ns = (
            self.count + count,
            (self.total_ns + total_ns + (1 << 63)) % (1 << 64) - (1 << 63),
        )


class CallPaths:
    """Those of a unit, where so many ranges are kept."""

    def __init__(self, unit: Unit, kept: set[Held]) -> None:
        self.all: dict[tuple[CallPath, int], CallPath] = {}
        self.of: dict[Held, CallPath] = {}
        top = CallPath(0, 0)
        self._add_tree(top, unit.folded)
        for one in reversed(unit.held):  # what is around a range comes after it
            around = unit.around(one)
            above = self.of[around].home if around is not None else top
            it = one.range
            path = (
                CallPath(it.name, it.shown, above, True)
                if one in kept
                else self._find(above, it.name, it.shown)
            )
            self.of[one] = path
            path.add(1, it.duration_ns)
            path.in_compilation |= it.in_compilation
            if one.folded is not None:
                self._add_tree(path, one.folded)

    def _find(self, above: CallPath, name: int, shown: int) -> CallPath:
        return self.all.setdefault((above, name), CallPath(name, shown, above))

    def _add_tree(self, above: CallPath, tree: Tree) -> None:
        self._add_below(above, tree.root.below.values())

    def _add_below(self, above: CallPath, paths: Iterable[Path]) -> None:
        for each in paths:
            path = self._find(above.home, each.name, each.shown)
            path.add(each.count, each.total_ns)
            path.in_compilation |= each.in_compilation
            self._add_below(path, each.below.values())

    def least_shown(self, spans: int, budget: int, duration_ns: int) -> int:
        """What took less has no span, where there may be so many."""
        shown = [path for path in self.all.values() if not path.is_node and not path.in_compilation]
        least_ns, share_ns = duration_ns // LEAST_SHARE, least_of_path(duration_ns, budget)
        times = sorted([path.total_ns for path in shown if path.total_ns >= least_ns], reverse=True)
        long_ones = sum(time_ns >= share_ns for time_ns in times)
        spans = min(spans, max(long_ones, budget // PART_OF_BUDGET))
        return least_ns if len(times) <= spans else times[spans] + 1


def choose_tree(unit: Unit, kept: set[Held], budget: int, duration_ns: int) -> int:
    """Keep more of a unit's ranges, in which those are kept that failed or were shown; what paths with a span took at least."""
    paths = CallPaths(unit, kept)
    for _ in range(MOST_ROUNDS):
        if not pull_out(
            unit, kept, paths, budget // 2, SHARES_OF_ONE * least_of_path(duration_ns, budget)
        ):
            break
        paths = CallPaths(unit, kept)
    least = paths.least_shown(max(0, budget - len(kept)), budget, duration_ns)
    for one in reversed(unit.held):
        around = unit.around(one)
        is_alone = paths.of[one].count == 1 and not one.range.in_compilation
        if is_alone and (around is None or around in kept) and one.range.duration_ns >= least:
            kept.add(one)
    return least


def pull_out(unit: Unit, kept: set[Held], paths: CallPaths, most: int, least_ns: int) -> bool:
    """Keep ranges that stand out, with all that they lie in, but for what lies in one that was found now."""
    found: set[Held] = set()
    for one in reversed(unit.held):
        path, around = paths.of[one], unit.around(one)
        if around in found:
            found.add(one)
            continue
        others_ns, others = (
            (path.total_ns - one.range.duration_ns + (1 << 63)) % (1 << 64) - (1 << 63),
            path.count - 1,
        )
        is_long = others > 0 and one.range.duration_ns >= least_ns and not one.range.in_compilation
        if one in kept or not is_long:
            continue
        if one.range.duration_ns // STANDS_OUT < _quotient(others_ns, others):
            continue
        line = []
        each: Held | None = one
        while each is not None and each not in kept:
            line.append(each)
            each = unit.around(each)
        if len(kept) + len(line) <= most:
            kept.update(line)
            found.add(one)
    return bool(found)


def _quotient(number: int, divisor: int) -> int:
    """Rounded towards zero."""
    return number // divisor if number >= 0 else -(-number // divisor)
