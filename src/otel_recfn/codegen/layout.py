"""Python text as formatters leave it alone: what fits a line stands on one, else each part on a line of its own.

A comma after the last part makes formatters keep that, however long their lines are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 88
"""The shortest line length that formatters commonly have."""
STEP = "    "


@dataclass(frozen=True)
class Group:
    """Parts in brackets: a call, a signature, a dict, a tuple."""

    opening: str
    parts: Sequence[str | Group]
    closing: str
    is_tuple: bool = False

    @property
    def flat(self) -> str:
        """On one line."""
        parts = [part if isinstance(part, str) else part.flat for part in self.parts]
        comma = "," if self.is_tuple and len(parts) == 1 else ""
        return f"{self.opening}{', '.join(parts)}{comma}{self.closing}"


def tuple_of(parts: Sequence[str | Group], keyword: str = "") -> Group:
    """A tuple, as an argument of this keyword."""
    return Group(f"{keyword}=(" if keyword else "(", parts, ")", is_tuple=True)


def dict_of(parts: Sequence[str | Group]) -> Group:
    """A dict, whose parts have keys."""
    return Group("{", parts, "}")


def lines_of(group: Group, indent: str = "", after: int = 0) -> list[str]:
    """The lines of a statement, or of a part of one that so many characters follow."""
    flat = indent + group.flat
    if len(flat) + after <= WIDTH or not group.parts:
        return [flat]
    return split_lines(group, indent)


def split_lines(group: Group, indent: str = "") -> list[str]:
    """The lines of a statement with each part on its own."""
    if not group.parts:
        return [indent + group.flat]
    lines = [indent + group.opening]
    for part in group.parts:
        inner = lines_of(part, indent + STEP, len(",")) if isinstance(part, Group) else [indent + STEP + part]
        lines += [*inner[:-1], f"{inner[-1]},"]
    return [*lines, indent + group.closing]


def docstring(text: str, indent: str) -> list[str]:
    """A docstring."""
    text = text.replace("\\", "\\\\").replace('"""', '\\"""')
    if len(indent) + len(text) + 6 <= WIDTH:
        return [f'{indent}"""{text}"""']
    wrapped = textwrap.wrap(text, WIDTH - len(indent) - 6, break_long_words=False, break_on_hyphens=False)
    return [f'{indent}"""{wrapped[0]}', *(indent + line for line in wrapped[1:]), f'{indent}"""']


def comment(text: str, indent: str = "") -> list[str]:
    """A comment."""
    begin = f"# {indent}"
    return textwrap.wrap(
        text, WIDTH, initial_indent=begin, subsequent_indent=begin, break_long_words=False, break_on_hyphens=False
    )
