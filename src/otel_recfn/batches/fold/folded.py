"""What is no span of its own: the sums of ranges by the path of names below the span that has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from otel_recfn.batches.fold.wrapping import wrapped

OTHER = 0
"""The number of the name for what no path was left for."""


@dataclass(slots=True)
class Folded:
    """Ranges of one path, and what lies in them. Times in nanoseconds.

    Attributes:
        count: how many.
        total_ns: from begin to end, summed.
        self_ns: the same without direct children.
        shortest_ns: of them all; 0 where there is none.
        longest_ns: of them all.
        first_ns: when the first began.
        first_id: the event id of that one.
        histogram: how many had a duration of so many binary digits.
        below: by the number of the name.
    """

    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    first_ns: int = 0
    first_id: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    below: dict[int, Folded] = field(default_factory=dict)

    def add_range(self, event_id: int, start_ns: int, duration_ns: int, self_ns: int, total_ns: int) -> None:
        """One more, ``total_ns`` of which aren't counted elsewhere."""
        self._add(1, total_ns, self_ns, duration_ns, duration_ns, (start_ns, event_id))
        self.histogram[duration_ns.bit_length()] += 1

    def add(self, other: Folded) -> None:
        """All of another path, without what lies in it."""
        first = (other.first_ns, other.first_id)
        self._add(other.count, other.total_ns, other.self_ns, other.shortest_ns, other.longest_ns, first)
        self.histogram += other.histogram

    def _add(self, count: int, total: int, own: int, shortest: int, longest: int, first: tuple[int, int]) -> None:
        self.shortest_ns = min(self.shortest_ns, shortest) if self.count else shortest
        self.first_ns, self.first_id = min((self.first_ns, self.first_id), first) if self.count else first
        self.longest_ns = max(self.longest_ns, longest)
        self.count += count
        self.total_ns, self.self_ns = wrapped(self.total_ns + total), wrapped(self.self_ns + own)

    def counts(self, most: int) -> tuple[int, list[int]]:
        """The fewest binary digits below ``most`` of a duration, and how many have so many, one more, and so on."""
        digits = [number for number in self.histogram if number < most]
        if not digits:
            return 0, []
        return min(digits), [self.histogram[number] for number in range(min(digits), max(digits) + 1)]

    def paths(self) -> Iterator[tuple[tuple[int, ...], Folded]]:
        """Every path below this one, each before what lies in it; of several the one with the most time first."""
        waiting: list[tuple[tuple[int, ...], Folded]] = [((), self)]
        while waiting:
            path, node = waiting.pop()
            if path:
                yield path, node
            below = sorted(node.below.items(), key=_smallest_first)
            waiting += [((*path, name), one) for name, one in below]


def _smallest_first(item: tuple[int, Folded]) -> tuple[int, int]:
    name, node = item
    return node.total_ns, -name


class FoldedTree:
    """What was folded into one span, or waits for one.

    Args:
        most: how many paths it has at most; what needs more goes to ``OTHER``.
    """

    def __init__(self, most: int) -> None:
        self.root = Folded()
        self.size = 0
        self.linkable: list[int] = []
        """Event ids of folded ranges that others may link to."""
        self._most = most

    def add_range(
        self, above: Folded | None, name: int, event_id: int, start_ns: int, duration_ns: int, self_ns: int
    ) -> Folded:
        """Add up a range that lies in ranges added up at ``above``, or directly in the span. Where it is added up."""
        around = self.root if above is None else above
        place = self._place(around, name)
        place.add_range(event_id, start_ns, duration_ns, self_ns, duration_ns if self._counts(around, name, place) else 0)
        return place

    def merge(self, other: FoldedTree) -> None:
        """What was folded into another one, or waited in it, was folded into this one."""
        self.merge_below(self.root, other)

    def merge_below(self, place: Folded, other: FoldedTree) -> None:
        """What was folded into a range was folded into this one, together with that range, which is added up at ``place``."""
        self._merge(place, other.root)
        self.linkable += other.linkable

    def _merge(self, place: Folded, other: Folded) -> None:
        for name, node in other.below.items():
            mine = self._place(place, name)
            if not self._counts(place, name, mine):
                node.total_ns = 0
            mine.add(node)
            self._merge(mine, node)

    def _counts(self, above: Folded, name: int, place: Folded) -> bool:
        """Whether the time counts at the place. Where no path was left, what it lies in has it."""
        return above is self.root or above.below.get(name) is place

    def _place(self, above: Folded, name: int) -> Folded:
        found = above.below.get(name)
        if found is None and self.size >= self._most:
            above, name = self.root, OTHER
            found = above.below.get(OTHER)
        if found is None:
            found = above.below[name] = Folded()
            self.size += 1
        return found
