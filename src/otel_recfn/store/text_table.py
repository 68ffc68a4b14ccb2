"""Rows of objects as a text table, sorted by one of its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from otel_recfn.model.errors import SettingError

MAX_CELL_CHARS = 80
T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column: its title, the attribute it sorts by, and its text."""

    title: str
    attribute: str
    text: Callable[[T], str]


def render(rows: Sequence[T], columns: Sequence[Column[T]], sort_by: str | None, row_limit: int) -> str:
    """Lines of equal length, the first column flush left, the others right.

    Raises:
        SettingError: no column sorts by ``sort_by``.
    """
    chosen = _sorted(rows, columns, sort_by)
    if row_limit >= 0:
        chosen = chosen[:row_limit]
    cells = [[column.title for column in columns], *([_cut(column.text(row)) for column in columns] for row in chosen)]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    lines = ["  ".join(_aligned(texts, widths)) for texts in cells]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def share_text(part: float, whole: float) -> str:
    """In percent."""
    return f"{100 * part / whole if whole else 0:.2f}%"


def time_text(microseconds: float) -> str:
    """In the unit that fits."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:.3f}{name}"
    return f"{microseconds:.3f}us"


def _sorted(rows: Sequence[T], columns: Sequence[Column[T]], sort_by: str | None) -> list[T]:
    if sort_by is None:
        return list(rows)
    allowed = dict.fromkeys(column.attribute for column in columns)
    if sort_by not in allowed:
        raise SettingError(f"sort_by={sort_by!r} is not a column here; allowed: {', '.join(allowed)}")
    descending = not rows or not isinstance(getattr(rows[0], sort_by), str)
    return sorted(rows, key=lambda row: getattr(row, sort_by), reverse=descending)


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(texts, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."
