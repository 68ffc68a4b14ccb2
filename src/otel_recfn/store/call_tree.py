"""Ranges summed up by call path: what ran in what, how often, and for how long.

rows ──► labels ──► call_paths ──► PathSums ──► CallTree ──► read, or printed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from otel_recfn.store.call_paths import PathSums, Places
from otel_recfn.store.text_table import Column, render, share_text, time_text


@dataclass(frozen=True)
class CallPath:
    """Every range of one name at one place in the tree.

    Attributes:
        path: names from the outermost range to these.
        count: how many ranges; 0 where it only groups others, as a thread does.
        cpu_time_total: microseconds from begin to end, summed; of a group, its members'.
        self_cpu_time_total: the same without direct children that ran on the same thread.
        cpu_time_min: microseconds of the shortest one; 0 where there is none.
        cpu_time_max: of the longest one.
    """

    path: tuple[str, ...]
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_time_min: float
    cpu_time_max: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]

    @property
    def cpu_time(self) -> float:
        """Microseconds of one range, on average."""
        return self.cpu_time_total / self.count if self.count else 0.0


class CallTree(Sequence[CallPath]):
    """What ``profile.tree()`` gives: a sequence of paths, each followed by what lies in it, the longest first.

    Args:
        above: of each path, the one that it lies in, which stands before it; -1 for the outermost.
        label: of each path, the place of its name in ``names``.
        names: what paths are called.
        sums: of each path.
    """

    def __init__(self, above: Places, label: Places, names: Sequence[str], sums: PathSums) -> None:
        self._above, self._label, self._names, self._sums = above, label, names, sums

    @cached_property
    def _order(self) -> list[int]:
        """The paths as they are listed."""
        below: dict[int, list[int]] = {}
        for path in np.argsort(self._sums.total_ns, kind="stable").tolist():
            below.setdefault(int(self._above[path]), []).append(path)
        order, waiting = [], list(below.get(-1, ()))
        while waiting:
            path = waiting.pop()
            order.append(path)
            waiting += below.get(path, ())
        return order

    @cached_property
    def _paths(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for above, label in zip(self._above.tolist(), self._label.tolist(), strict=True):
            found.append((*(found[above] if above >= 0 else ()), self._names[label]))
        return found

    def _entry(self, path: int) -> CallPath:
        sums = self._sums
        count, total, own = int(sums.count[path]), int(sums.total_ns[path]), int(sums.self_ns[path])
        shortest = int(sums.shortest_ns[path]) if count else 0
        times = (total / 1000, own / 1000, shortest / 1000, int(sums.longest_ns[path]) / 1000)
        return CallPath(self._paths[path], count, *times)

    @overload
    def __getitem__(self, index: int) -> CallPath: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallPath]: ...
    def __getitem__(self, index: int | slice) -> CallPath | list[CallPath]:
        if isinstance(index, slice):
            return [self._entry(path) for path in self._order[index]]
        return self._entry(self._order[index])

    def __len__(self) -> int:
        return len(self._above)

    def __iter__(self) -> Iterator[CallPath]:
        return map(self._entry, self._order)

    def __str__(self) -> str:
        return self.table()

    def table(self, row_limit: int = 100, max_depth: int | None = None) -> str:
        """The tree as text: names are indented by their depth.

        Args:
            row_limit: paths shown: those with the most time, and what they lie in; -1 for all.
            max_depth: how deep paths are shown, 1 for the outermost alone; None for all.
        """
        shown = self._shown(row_limit, max_depth)
        rows = [entry for path, entry in zip(self._order, self, strict=True) if path in shown]
        whole = float(self._sums.total_ns[self._above < 0].sum()) / 1000
        text = render(rows, _columns(whole), None, -1)
        hidden = len(self) - len(rows)
        return f"{text}{hidden} more paths are not shown\n" if hidden else text

    def _shown(self, row_limit: int, max_depth: int | None) -> set[int]:
        by_time = np.argsort(-self._sums.total_ns, kind="stable").tolist()
        shown: set[int] = set()
        for path in by_time:
            around = self._with_what_it_lies_in(path) - shown
            deep = max_depth is not None and len(self._paths[path]) > max_depth
            if not deep and (row_limit < 0 or len(shown) + len(around) <= row_limit):
                shown |= around
        return shown

    def _with_what_it_lies_in(self, path: int) -> set[int]:
        found = set()
        while path >= 0:
            found.add(path)
            path = int(self._above[path])
        return found

    def __repr__(self) -> str:
        return f"<CallTree of {len(self)} paths, {int(self._sums.count.sum())} ranges>"


def _columns(whole: float) -> list[Column[CallPath]]:
    return [
        Column("Name", "name", lambda one: "  " * (len(one.path) - 1) + one.name),
        Column("CPU total %", "cpu_time_total", lambda one: share_text(one.cpu_time_total, whole)),
        Column("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        Column("Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)),
        Column("# of Calls", "count", lambda one: str(one.count or "")),
        Column("CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time) if one.count else ""),
        Column("CPU time max", "cpu_time_max", lambda one: time_text(one.cpu_time_max) if one.count else ""),
    ]
