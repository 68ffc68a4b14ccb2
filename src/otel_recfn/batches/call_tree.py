"""The tree of calls: which ranges ran in which, how often, and for how long; read, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from otel_recfn.batches.call_paths import PathSums, longest_paths
from otel_recfn.batches.number_sets import Indices
from otel_recfn.batches.text_tables import (
    ROW_LIMITS,
    TextColumn,
    is_mostly_waiting,
    lost_line,
    lost_text,
    render,
    share_text,
    time_text,
    wait_text,
)
from otel_recfn.model.events import whole_number


@dataclass(frozen=True)
class CallPath:
    """The sums of all ranges of one name at one place in the tree.

    Attributes:
        path: names from the outermost range to these.
        count: how many ranges; 0 if it only groups others, as a thread does.
        cpu_time_total: microseconds from begin to end, summed; of a group, its members'.
        self_cpu_time_total: the same without direct children that ran on the same thread.
        cpu_time_min: microseconds of the shortest one; 0 if there is none.
        cpu_time_max: of the longest one.
        wait_time_total: the microseconds of ``cpu_time_total`` that threads waited, of ranges whose
            CPU time is known.
        backward_cpu_time_total: of a module, the part of ``cpu_time_total`` that backward passes
            took.
    """

    path: tuple[str, ...]
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_time_min: float
    cpu_time_max: float
    wait_time_total: float
    backward_cpu_time_total: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]

    @property
    def cpu_time(self) -> float:
        """The average time of a range, in microseconds; of a module, that of a call."""
        forward = self.cpu_time_total - self.backward_cpu_time_total
        return forward / self.count if self.count else 0.0


class CallTree(Sequence[CallPath]):
    """The result of ``profile.tree()``: a sequence of call paths, each followed by the paths below
    it, the longest first.

    The table has rows for the time outside of ranges, too, which are no call paths. Its last line
    says what was lost, if anything was.

    Args:
        parent: that of ``Paths``.
        label: that of ``Paths``, an index into ``names``.
        names: the names of the paths.
        sums: their sums.
        lost: the counters of what isn't in them.

    Attributes:
        wall_time: the wall time in microseconds, of which the table has shares.
        outside: the rows of the time outside of ranges, parents before their children.
    """

    def __init__(
        self,
        parent: Indices,
        label: Indices,
        names: Sequence[str],
        sums: PathSums,
        lost: Mapping[str, int] | None = None,
    ) -> None:
        self._parent = parent
        self._label = label
        self._names = names
        self._sums = sums
        self._lost = lost or {}
        self.wall_time = float(sums.total_ns[parent < 0].sum()) / 1000
        self.outside: Sequence[CallPath] = ()

    @cached_property
    def _order(self) -> list[int]:
        """The order in which the paths are listed."""
        below: dict[int, list[int]] = {}
        for path in np.argsort(self._sums.total_ns, kind="stable").tolist():
            below.setdefault(int(self._parent[path]), []).append(path)
        order = []
        waiting = list(below.get(-1, ()))
        while waiting:
            path = waiting.pop()
            order.append(path)
            waiting += below.get(path, ())
        return order

    @cached_property
    def _paths(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for parent, label in zip(self._parent.tolist(), self._label.tolist(), strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), self._names[label]))
        return found

    def _entry(self, path: int) -> CallPath:
        sums = self._sums
        count = int(sums.count[path])
        return CallPath(
            path=self._paths[path],
            count=count,
            cpu_time_total=int(sums.total_ns[path]) / 1000,
            self_cpu_time_total=int(sums.self_ns[path]) / 1000,
            cpu_time_min=int(sums.shortest_ns[path]) / 1000 if count else 0.0,
            cpu_time_max=int(sums.longest_ns[path]) / 1000,
            wait_time_total=int(sums.wait_ns[path]) / 1000,
            backward_cpu_time_total=int(sums.backward_ns[path]) / 1000,
        )

    @overload
    def __getitem__(self, index: int) -> CallPath: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallPath]: ...
    def __getitem__(self, index: int | slice) -> CallPath | list[CallPath]:
        if isinstance(index, slice):
            return [self._entry(path) for path in self._order[index]]
        return self._entry(self._order[index])

    def __len__(self) -> int:
        return len(self._parent)

    def __iter__(self) -> Iterator[CallPath]:
        return map(self._entry, self._order)

    def __str__(self) -> str:
        return self.table()

    def table(self, row_limit: int = 100, max_depth: int | None = None) -> str:
        """The tree as text: names are indented by their depth.

        Args:
            row_limit: the maximum number of paths: those with the most time, and those around
                them; -1 for all.
            max_depth: the maximum depth of paths, 1 for the outermost alone; None for all.

        Raises:
            SettingError: one of them is not such a number.
        """
        if max_depth is not None:
            max_depth = whole_number(max_depth, "max_depth", range(1, 1 << 31))
        rows = self.displayed_paths(whole_number(row_limit, "row_limit", ROW_LIMITS), max_depth)
        with_backward = bool(self._sums.backward_ns.any())
        columns = _columns(self.wall_time, with_backward, any(map(is_mostly_waiting, rows)))
        text = render(self.with_outside(rows, max_depth), columns, None, -1)
        hidden = len(self) - len(rows)
        if hidden:
            text += f"{hidden} more paths are not shown\n"
        return text + lost_line(self._lost)

    def displayed_paths(self, row_limit: int, max_depth: int | None = None) -> list[CallPath]:
        """The paths that a table with this limit of rows shows, in the tree's order."""
        by_time = np.argsort(-self._sums.total_ns, kind="stable").tolist()
        candidates = [
            path for path in by_time if max_depth is None or len(self._paths[path]) <= max_depth
        ]
        displayed = longest_paths(
            self._parent, candidates, row_limit if row_limit >= 0 else len(self)
        )
        return [self._entry(path) for path in self._order if path in displayed]

    def with_outside(
        self, rows: Iterable[CallPath], max_depth: int | None = None
    ) -> list[CallPath]:
        """These paths with the rows of the time outside of ranges, each among its siblings by
        time.
        """
        found = list(rows)
        for row in self.outside:
            if max_depth is None or len(row.path) <= max_depth:
                _insert_by_time(found, row)
        return found

    def __repr__(self) -> str:
        lost = f"; lost: {lost_text(self._lost)}" if self._lost else ""
        return f"<CallTree of {len(self)} paths, {int(self._sums.count.sum())} ranges{lost}>"


def _insert_by_time(rows: list[CallPath], row: CallPath) -> None:
    """Insert a row among its siblings by time, if the row around it is there."""
    parent = row.path[:-1]
    paths = [each.path for each in rows]
    if parent and parent not in paths:
        return
    position = paths.index(parent) + 1 if parent else 0
    while position < len(rows) and paths[position][: len(parent)] == parent:
        is_sibling = paths[position][:-1] == parent
        if is_sibling and rows[position].cpu_time_total < row.cpu_time_total:
            break
        position += 1
    rows.insert(position, row)


def _columns(whole: float, with_backward: bool, with_waiting: bool) -> list[TextColumn[CallPath]]:
    waiting = TextColumn[CallPath]("Waited", "wait_time_total", wait_text)
    backward = TextColumn[CallPath](
        "Backward", "backward_cpu_time_total", lambda one: time_text(one.backward_cpu_time_total)
    )
    return [
        TextColumn("Name", "name", lambda one: "  " * (len(one.path) - 1) + one.name),
        TextColumn("Wall %", "cpu_time_total", lambda one: share_text(one.cpu_time_total, whole)),
        TextColumn("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        TextColumn(
            "Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)
        ),
        *([waiting] if with_waiting else []),
        *([backward] if with_backward else []),
        TextColumn("# of Calls", "count", lambda one: str(one.count or "")),
        TextColumn(
            "CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time) if one.count else ""
        ),
        TextColumn(
            "CPU time max",
            "cpu_time_max",
            lambda one: time_text(one.cpu_time_max) if one.count else "",
        ),
    ]
