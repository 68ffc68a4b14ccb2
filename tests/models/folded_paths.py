"""The sums of folded ranges by their path of names, to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from models.finished import SEVERAL

NO_NAME = 0


def wrapped(number: int) -> int:
    """What is left of a sum in 64 bits, one of them the sign."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def sum_of_known(one: int, other: int) -> int:
    """Of two CPU times."""
    return one + other if min(one, other) >= 0 and one + other < 1 << 63 else -1


@dataclass(eq=False)
class Path:
    """The sums of ranges of one path of names, and the paths in it by name. Times in nanoseconds."""

    name: int = NO_NAME
    shown: int = NO_NAME
    module: int = 0
    modules: int = 0
    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    cpu_time_ns: int = 0
    """-1: not known of all of them."""
    first: tuple[int, int, int] = (0, 0, -1)
    """When the first began, its event id, and its row; -1 where that may be gone."""
    in_compilation: bool = False
    below: dict[int, Path] = field(default_factory=dict)
    around: Path | None = None
    """Of a backward node the range around it, where what lies in the node hangs, too."""

    @property
    def home(self) -> Path:
        """Where what lies in it hangs."""
        return self.around or self

    def add(self, other: Path) -> None:
        """All of another path, without what lies in it."""
        if other.count:
            self.module = (
                other.module if self.count == 0 or self.module == other.module else SEVERAL
            )
            self.modules = (
                other.modules if self.count == 0 or self.modules == other.modules else SEVERAL
            )
        self.shortest_ns = (
            min(self.shortest_ns, other.shortest_ns) if self.count else other.shortest_ns
        )
        self.first = (
            min(self.first, other.first, key=lambda one: one[:2]) if self.count else other.first
        )
        self.longest_ns = max(self.longest_ns, other.longest_ns)
        self.count += other.count
        self.total_ns, self.self_ns = (
            wrapped(self.total_ns + other.total_ns),
            wrapped(self.self_ns + other.self_ns),
        )
        self.cpu_time_ns = sum_of_known(self.cpu_time_ns, other.cpu_time_ns)
        self.in_compilation |= other.in_compilation

    def paths(self) -> Iterator[tuple[tuple[int, ...], Path]]:
        """Every path below this one, each before what lies in it; of several the one with the most time first."""
        for name, path in sorted(self.below.items(), key=lambda item: (-item[1].total_ns, item[0])):
            yield (name,), path
            for names, inner in path.paths():
                yield (name, *names), inner


class Tree:
    """What was folded into one span, or directly into a unit, or waits for a range that hasn't come."""

    def __init__(self) -> None:
        self.root = Path()

    def add(self, above: Path, other: Path) -> Path:
        """Add up what is of that name and lies in ``above``. Where it is added up."""
        above = above.home
        place = above.below.get(other.name)
        if place is None:
            is_node = above.shown == other.name and above.shown != above.name
            place = above.below[other.name] = Path(
                other.name, other.shown, around=above if is_node else None
            )
        place.add(other)
        return place

    def merge(self, above: Path, other: Tree) -> None:
        """What was folded into another one lies in ``above``."""
        self._merge(above, other.root)

    def _merge(self, above: Path, other: Path) -> None:
        for path in list(other.below.values()):
            self._merge(self.add(above, path), path)

    def outer_ns(self) -> int:
        """How long those took that lie directly in it."""
        return sum(path.total_ns for path in self.root.below.values() if not path.in_compilation)
