"""The pictures of layers in ARCHITECTURE.md, read: what may import what."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def picture_below(heading: str) -> str:
    """The indented lines below a heading of ARCHITECTURE.md that hold arrows."""
    section = ARCHITECTURE.read_text(encoding="utf-8").split(f"\n{heading}\n")[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return "\n".join(
        line for line in section.splitlines() if line.startswith("    ") and "->" in line
    )


def layers(picture: str) -> dict[str, set[str]]:
    """What each layer of the picture may import: everything to its right.

    A line that begins with an arrow goes on from the layers that stand above, to the left of that
    arrow.
    """
    edges: dict[str, set[str]] = {}
    lines = picture.splitlines()
    for number, line in enumerate(lines):
        groups = [_words(part) for part in line.split("->")]
        groups[0] = groups[0] or _above(lines[:number], line.index("->"))
        for left, right in pairwise(groups):
            for layer in left:
                edges.setdefault(layer, set()).update(right)
    return {layer: _reachable(layer, edges) for layer in edges}


def _above(lines: list[str], column: int) -> set[str]:
    """The layers that end before the column, in the nearest line above that has any."""
    before = (line[:column].rstrip().removesuffix("->") for line in reversed(lines))
    return _words(next(text for text in before if text.strip()).split("->")[-1])


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w/]+", text))


def _reachable(layer: str, edges: dict[str, set[str]]) -> set[str]:
    below = edges.get(layer, set())
    return below.union(*(_reachable(each, edges) for each in below)) if below else set()
