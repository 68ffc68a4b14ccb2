"""Tables of text: columns, lines of equal length, and numbers as text.

    ---------------  ----------  ----------        a rule
    Name             Self CPU    # of Calls        titles
    ---------------  ----------  ----------
    aten::mm            1.200ms           3        a row: the first column flush left, others right
    ---------------  ----------  ----------

A row has several lines if one of its texts has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar

from otel_recfn.errors import SettingError
from otel_recfn.model.events import wait_time_ns, whole_number
from otel_recfn.support.safe_texts import visible

T = TypeVar("T")
MAX_CELL_CHARS = 80
ROW_LIMITS = range(-1, 1 << 31)
"""The numbers of rows that a table may be asked for; -1 for all."""
UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0}
"""The microseconds of a unit of time."""


@dataclass(frozen=True)
class TextColumn(Generic[T]):
    """A column: its title, the attribute that it sorts by, its text, and how that is cut."""

    title: str
    attribute: str
    text: Callable[[T], str]
    width: int | None = MAX_CELL_CHARS
    """The maximum number of characters of a line; None: any number."""
    from_end: bool = False
    """Whether the end of a long line is shown, as of a stack's, which names the function."""

    def lines(self, row: T) -> list[str]:
        """The lines of a row's text, each cut to the width."""
        return [self._cut(line) for line in self.text(row).split("\n")]

    def _cut(self, line: str) -> str:
        line = visible(line)
        if self.width is None or len(line) <= self.width:
            return line
        return "..." + line[3 - self.width :] if self.from_end else line[: self.width - 3] + "..."


def render(
    rows: Sequence[T], columns: Sequence[TextColumn[T]], sort_by: str | None, row_limit: int
) -> str:
    """The rows as a table.

    Args:
        rows: the rows.
        columns: the columns.
        sort_by: the attribute of a column, largest first (texts: alphabetically); None leaves the
            order.
        row_limit: the maximum number of rows; -1 for all.

    Raises:
        SettingError: no column sorts by ``sort_by``.
    """
    displayed = _sorted(rows, columns, sort_by)
    if row_limit >= 0:
        displayed = displayed[:row_limit]
    cells = [
        [column.title for column in columns],
        *chain.from_iterable([_row_lines(row, columns) for row in displayed]),
    ]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    lines = ["  ".join(_aligned(texts, widths)) for texts in cells]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def _sorted(rows: Sequence[T], columns: Sequence[TextColumn[T]], sort_by: str | None) -> list[T]:
    if sort_by is None:
        return list(rows)
    allowed = dict.fromkeys(column.attribute for column in columns)
    if sort_by not in allowed:
        raise SettingError(
            f"sort_by={sort_by!r} is not a column here; allowed: {', '.join(allowed)}"
        )
    descending = not rows or not isinstance(getattr(rows[0], sort_by), str)
    return sorted(rows, key=lambda row: getattr(row, sort_by), reverse=descending)


def _row_lines(row: T, columns: Sequence[TextColumn[T]]) -> list[tuple[str, ...]]:
    """The texts of a row, in several lines if one of them has several."""
    return list(zip_longest(*[column.lines(row) for column in columns], fillvalue=""))


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(texts, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]


def cell_width(name: str, value: int | None) -> int | None:
    """The width of a column that the program asks for by a keyword; None: any width.

    Raises:
        SettingError: it isn't a number from 4 on, which leaves room for "..." and a character.
    """
    return None if value is None else whole_number(value, name, range(4, 1 << 31))


def time_text(microseconds: float, unit: str | None = None) -> str:
    """A time in that unit; None: in the one that fits."""
    name = unit or next((name for name, length in UNITS.items() if microseconds >= length), "us")
    return f"{microseconds / UNITS[name]:.3f}{name}"


def share_text(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{100 * part / whole if whole else 0:.2f}%"


def memory_text(nbytes: int) -> str:
    """A number of bytes in the unit that fits."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} B"


def wait_text(row: Any, time_in: Callable[[float], str] = time_text) -> str:
    """The time that ranges waited; empty if it isn't known."""
    return time_in(row.wait_time_total) if row.wait_time_total else ""


def is_mostly_waiting(row: Any) -> bool:
    """Whether a column of waiting is of use because of these ranges."""
    total_ns = int(1000 * row.cpu_time_total)
    cpu_ns = int(1000 * (row.cpu_time_total - row.wait_time_total))
    return wait_time_ns(total_ns, cpu_ns) > 0


def lost_line(lost: Mapping[str, int]) -> str:
    """The last line of a table, which says what was lost; empty if nothing was."""
    return f"Lost, and not in these sums: {lost_text(lost)}\n" if lost else ""


def lost_text(lost: Mapping[str, int]) -> str:
    """The counters of what was lost, as text."""
    return ", ".join([f"{name}={count}" for name, count in lost.items()])
