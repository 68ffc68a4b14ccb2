"""The sums of ranges by name, as ``torch.profiler``'s ``key_averages`` returns them: read, and
printed as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

from otel_recfn.batches.text_tables import (
    MAX_CELL_CHARS,
    ROW_LIMITS,
    UNITS,
    TextColumn,
    cell_width,
    is_mostly_waiting,
    lost_line,
    memory_text,
    render,
    share_text,
    time_text,
    wait_text,
)
from otel_recfn.batches.torch_attributes import TorchAttributes
from otel_recfn.batches.wall import Wall
from otel_recfn.errors import SettingError
from otel_recfn.model.events import whole_number

FindEvent = Callable[[int], Any]
"""A function that finds an event of ``profile.events()`` by its event id."""


@dataclass(eq=False)
class KeyAverage(TorchAttributes):
    """The sums of all ranges of one name (and, if grouped by them, of the same input shapes and
    stacks).

    It has the attributes of torch.profiler's averages. Attributes that are not sums have the values
    of the first range.

    Attributes:
        key: the name.
        input_shapes: JSON text of the shapes; empty if not grouped by them.
        count: the number of ranges.
        cpu_time_total: the sum of the microseconds from begin to end.
        self_cpu_time_total: the same without direct children.
        cpu_memory_usage: bytes of CPU memory that were allocated less those that were freed in the
            ranges.
        self_cpu_memory_usage: the same without direct children.
        device_memory_usage, self_device_memory_usage: the same on other devices.
        flops: floating point operations.
        wait_time_total: the microseconds of ``cpu_time_total`` for which threads waited, in ranges
            whose CPU time is known.
        stack: the innermost lines of the stack, as many as were asked for.
        is_top_level: whether one of the ranges has no parent.
        node_id, scope, is_async, is_user_annotation: of the first range.
        event_id: the first range's.
    """

    key: str
    input_shapes: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int
    self_cpu_memory_usage: int
    flops: int
    wait_time_total: float
    stack: list[str]
    is_top_level: bool = True
    device_memory_usage: int = 0
    self_device_memory_usage: int = 0
    node_id: int = -1
    scope: int = 0
    is_async: bool = False
    is_user_annotation: bool = False
    event_id: int = 0
    _find_event: FindEvent | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """The sums: the events stay where the profile is."""
        return {**vars(self), "_find_event": None}

    @property
    def cpu_time(self) -> float:
        """The average time of a range, in microseconds."""
        return self.cpu_time_total / self.count

    @property
    def cpu_parent(self) -> Any:
        """The parent of the first range, an event of ``profile.events()``; None if it has none."""
        return self._find_event(self.event_id).cpu_parent if self._find_event is not None else None

    @property
    def cpu_children(self) -> list[Any]:
        """The children of the first range, events of ``profile.events()``."""
        return self._find_event(self.event_id).cpu_children if self._find_event is not None else []

    def add(self, other: KeyAverage) -> KeyAverage:
        """Add the sums of another one of the same name to these, and return this one.

        Raises:
            ValueError: it has another name.
        """
        if other.key != self.key:
            raise ValueError(
                f"the sums of {other.key!r} can't be added to those of {self.key!r}; add those of"
                " one name"
            )
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    __iadd__ = add


_SUMS = (
    "count",
    "cpu_time_total",
    "self_cpu_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "device_memory_usage",
    "self_device_memory_usage",
    "flops",
    "wait_time_total",
)
"""The attributes of a KeyAverage that are sums over its ranges."""


class KeyAverages(Sequence[KeyAverage]):
    """The result of ``profile.key_averages()``: one KeyAverage for each name, in the order in which
    the names first began.

    The last lines of the table say what the wall time was, and what was lost, if anything was. A
    notebook shows the HTML that ``in_notebook`` returns.
    """

    def __init__(
        self,
        averages: Sequence[KeyAverage],
        lost: Mapping[str, int] | None = None,
        in_notebook: Callable[[], str] | None = None,
        wall: Wall | None = None,
    ) -> None:
        self._averages = list(averages)
        self._lost = lost or {}
        self._in_notebook = in_notebook
        self._wall = wall

    def _repr_html_(self) -> str | None:
        return self._in_notebook() if self._in_notebook is not None and self._averages else None

    @overload
    def __getitem__(self, index: int) -> KeyAverage: ...
    @overload
    def __getitem__(self, index: slice) -> KeyAverages: ...
    def __getitem__(self, index: int | slice) -> KeyAverage | KeyAverages:
        if isinstance(index, slice):
            return KeyAverages(self._averages[index], self._lost, self._in_notebook, self._wall)
        return self._averages[index]

    def __len__(self) -> int:
        return len(self._averages)

    def __iter__(self) -> Iterator[KeyAverage]:
        return iter(self._averages)

    @property
    def self_cpu_time_total(self) -> float:
        """The microseconds of all ranges without their children, so that no time counts twice."""
        return sum(average.self_cpu_time_total for average in self._averages)

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int | None = MAX_CELL_CHARS,
        max_name_column_width: int | None = MAX_CELL_CHARS,
        max_shapes_column_width: int | None = MAX_CELL_CHARS,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """The averages as text.

        The arguments are those of torch.profiler's ``table``, in the same order.

        Args:
            sort_by: an attribute of KeyAverage, largest first (``key``: alphabetically). None: the
                order of the averages.
            row_limit: the maximum number of rows; -1 for all.
            max_src_column_width: the number of characters after which a line of a stack is cut.
                None: no limit.
            max_name_column_width: the same for names.
            max_shapes_column_width: the same for shapes.
            header: a line above the table.
            top_level_events_only: whether to leave out names that have no range at top level.
            time_unit: the unit of all times, ``s``, ``ms`` or ``us``. None: a suitable unit for
                each time.

        Raises:
            SettingError: there is no such column or unit, or a number isn't allowed.
        """
        if time_unit is not None and time_unit not in UNITS:
            raise SettingError(
                f"time_unit={time_unit!r} is not allowed; allowed: None, {', '.join(UNITS)}"
            )
        time_in = partial(time_text, unit=time_unit)
        whole = self.self_cpu_time_total
        widths = {
            "stack": cell_width("max_src_column_width", max_src_column_width),
            "key": cell_width("max_name_column_width", max_name_column_width),
            "input_shapes": cell_width("max_shapes_column_width", max_shapes_column_width),
        }
        columns = [
            replace(column, width=widths.get(column.attribute, column.width))
            for column in _columns(self._averages, whole, time_in, self._wall)
        ]
        displayed = self._averages
        if top_level_events_only:
            displayed = [average for average in displayed if average.is_top_level]
        row_limit = whole_number(row_limit, "row_limit", ROW_LIMITS)
        title = f"{header}\n" if header is not None else ""
        table = render(displayed, columns, sort_by, row_limit)
        total = f"Self CPU time total: {time_in(whole)}\n"
        walls = (
            [f"{sentence}\n" for sentence in self._wall.sentences(time_in)] if self._wall else []
        )
        return "".join([title, table, total, *walls, lost_line(self._lost)])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        lost = f", lost={dict(self._lost)}" if self._lost else ""
        return f"KeyAverages({self._averages!r}{lost})"


def _columns(
    averages: Sequence[KeyAverage],
    whole: float,
    time_in: Callable[[float], str],
    wall: Wall | None,
) -> list[TextColumn[KeyAverage]]:
    """The columns of a table: those of times, and others if an average has a value there."""
    columns = _time_columns(whole, time_in)
    if wall is not None:
        wall_us = wall.ns / 1000
        columns.append(
            TextColumn(
                "Wall %", "cpu_time_total", lambda row: share_text(row.cpu_time_total, wall_us)
            )
        )
    for has_value, optional in _optional_columns(time_in):
        if any(has_value(average) for average in averages):
            columns += optional
    return columns


def _time_columns(whole: float, time_in: Callable[[float], str]) -> list[TextColumn[KeyAverage]]:
    return [
        TextColumn("Name", "key", lambda row: row.key),
        TextColumn(
            "Self CPU %",
            "self_cpu_time_total",
            lambda row: share_text(row.self_cpu_time_total, whole),
        ),
        TextColumn("Self CPU", "self_cpu_time_total", lambda row: time_in(row.self_cpu_time_total)),
        TextColumn(
            "CPU total %", "cpu_time_total", lambda row: share_text(row.cpu_time_total, whole)
        ),
        TextColumn("CPU total", "cpu_time_total", lambda row: time_in(row.cpu_time_total)),
        TextColumn("CPU time avg", "cpu_time", lambda row: time_in(row.cpu_time)),
        TextColumn("# of Calls", "count", lambda row: str(row.count)),
    ]


def _optional_columns(
    time_in: Callable[[float], str],
) -> list[tuple[Callable[[KeyAverage], Any], list[TextColumn[KeyAverage]]]]:
    """The other columns, each with the value that an average has if they are of use."""
    return [
        (
            is_mostly_waiting,
            [TextColumn("Waited", "wait_time_total", partial(wait_text, time_in=time_in))],
        ),
        (
            lambda row: row.cpu_memory_usage,
            [
                _memory_column("Memory", "cpu_memory_usage"),
                _memory_column("Self Memory", "self_cpu_memory_usage"),
            ],
        ),
        (
            lambda row: row.device_memory_usage,
            [
                _memory_column("Device Memory", "device_memory_usage"),
                _memory_column("Self Device Memory", "self_device_memory_usage"),
            ],
        ),
        (lambda row: row.flops, [TextColumn("FLOPs", "flops", lambda row: f"{row.flops:,}")]),
        (
            lambda row: row.input_shapes,
            [TextColumn("Input Shapes", "input_shapes", lambda row: row.input_shapes)],
        ),
        (
            lambda row: row.stack,
            [
                TextColumn(
                    "Source Location", "stack", lambda row: "\n".join(row.stack), from_end=True
                )
            ],
        ),
    ]


def _memory_column(title: str, attribute: str) -> TextColumn[KeyAverage]:
    return TextColumn(title, attribute, lambda row: memory_text(getattr(row, attribute)))
