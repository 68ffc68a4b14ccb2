"""Prints one span and what is below it as a tree: repeated siblings on one line, small change
summed up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

from opentelemetry.sdk.trace import ReadableSpan

NUMBER_AT_END = re.compile(r"_\d+$")
WIDTH = 76
MANY = 12
Children = Mapping[int, Sequence[ReadableSpan]]


@dataclass
class Line:
    """One line of the tree: a span, or some spans in a row that look alike."""

    name: str
    spans: Sequence[ReadableSpan]
    below: list[Line] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        """Of all its spans."""
        return sum(map(duration_ns, self.spans))


def duration_ns(span: ReadableSpan) -> int:
    """Of an ended span."""
    return span.end_time - span.start_time


def print_tree(
    root: ReadableSpan, spans: Sequence[ReadableSpan], depth: int = 7, min_share: float = 0.01
) -> None:
    """The tree below ``root``, at most ``depth`` levels; what took less than ``min_share`` of
    it is summed up.
    """
    children = children_of(spans)
    top = Line(root.name, [root], _lines(children.get(root.context.span_id, ()), children, depth))
    for text, line in _texts(top, int(duration_ns(root) * min_share)):
        times = f"{len(line.spans)} x" if len(line.spans) > 1 else ""
        print(
            f"{text if len(text) <= WIDTH else text[: WIDTH - 1] + '…':<{WIDTH}} {times:>6}"
            f" {line.duration_ns / 1e6:9.3f} ms"
        )


def children_of(spans: Sequence[ReadableSpan]) -> Children:
    """By parent span id, in start order."""
    children: dict[int, list[ReadableSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time):
        if span.parent:
            children[span.parent.span_id].append(span)
    return children


def descendants(root: ReadableSpan, spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """Every span of ``spans`` below ``root``."""
    children, found, waiting = children_of(spans), [], [root]
    while waiting:
        below = children.get(waiting.pop().context.span_id, ())
        found.extend(below)
        waiting.extend(below)
    return found


def _lines(spans: Sequence[ReadableSpan], children: Children, depth: int) -> list[Line]:
    """Siblings that look alike make one line; below it stands what is below all of them."""
    if not depth:
        return []
    return [
        Line(name, alike, _lines(_interleaved(alike, children), children, depth - 1))
        for name, alike in _alike(spans)
    ]


def _alike(spans: Sequence[ReadableSpan]) -> Iterator[tuple[str, list[ReadableSpan]]]:
    """Siblings in a row with the same name but for its number; of many siblings also those that
    are apart.
    """
    in_order = spans
    if len(spans) > MANY:
        places = {name: place for place, name in reversed(list(enumerate(map(_plain_name, spans))))}
        in_order = sorted(spans, key=lambda span: places[_plain_name(span)])
    for name, group in groupby(in_order, key=_plain_name):
        alike = list(group)
        yield name if len(alike) > 1 else alike[0].name, alike


def _plain_name(span: ReadableSpan) -> str:
    return NUMBER_AT_END.sub("", span.name)


def _interleaved(alike: Sequence[ReadableSpan], children: Children) -> list[ReadableSpan]:
    """The children of spans that look alike: their first ones, then their second ones, and so
    on.
    """
    families = [children.get(span.context.span_id, ()) for span in alike]
    return [child for same_place in zip_longest(*families) for child in same_place if child]


def _texts(
    line: Line, min_ns: int, indent: str = "", branch: str = ""
) -> Iterator[tuple[str, Line]]:
    """The line, indented, and those below it."""
    yield indent + branch + line.name, line
    inner = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    shown = [child for child in line.below if child.duration_ns >= min_ns]
    small = Line(
        "… shorter ones",
        [span for child in line.below if child.duration_ns < min_ns for span in child.spans],
    )
    if small.spans and small.duration_ns >= min_ns:
        shown.append(small)
    for child in shown:
        yield from _texts(child, min_ns, inner, "└─ " if child is shown[-1] else "├─ ")
