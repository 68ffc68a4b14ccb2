"""The findings and the tree of calls as text for a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from otel_recfn.batches.call_tree import CallPath, CallTree
from otel_recfn.batches.text_tables import lost_line, share_text, time_text
from otel_recfn.report.finding import Finding
from otel_recfn.support.safe_texts import visible

MAX_PATHS = 40
BAR_LENGTH = 10
"""The characters of a whole bar."""
MIN_NAME_LENGTH = 30
"""The minimum room for a name, however narrow the terminal is. Longer names lose their beginnings,
as ends differ more often.
"""


def tree_with_bars(
    tree: CallTree, found: Sequence[Finding], lost: Mapping[str, int], wall: Sequence[str] = ()
) -> str:
    """The text of the wall time, of the findings, and of the tree of calls, with bars: at most 40
    paths, cut to the width of the terminal.
    """
    if not len(tree):
        return "\n".join(["Nothing was recorded.", *([lost_line(lost).rstrip()] if lost else [])])
    width = shutil.get_terminal_size().columns
    rows = tree.displayed_paths(MAX_PATHS)
    lines = [
        f"{'!' if finding.serious else '-'} {finding.headline}: {finding.text}" for finding in found
    ]
    lines = [*wall, *([""] if wall and found else []), *lines]
    if lines:
        lines.append("")
    lines += [_path_line(row, tree.wall_time, width) for row in tree.with_outside(rows)]
    if len(rows) < len(tree):
        lines.append(
            f"{len(tree) - len(rows):,} more paths are not shown: tree().table(row_limit=-1) has"
            " them all"
        )
    if lost:
        lines.append(lost_line(lost).rstrip())
    return visible("\n".join(lines))


def _path_line(row: CallPath, whole: float, width: int) -> str:
    share = row.cpu_time_total / whole if whole else 0.0
    block = "█" if printable("█") == "█" else "#"
    bar = block * round(min(share, 1.0) * BAR_LENGTH)
    numbers = (
        f"{share_text(share, 1.0):>8} {bar.ljust(BAR_LENGTH)} {time_text(row.cpu_time_total):>10}"
        f" {row.count or '':>7}  "
    )
    indent = "  " * (len(row.path) - 1)
    room = max(width - len(numbers) - len(indent), MIN_NAME_LENGTH)
    name = row.name if len(row.name) <= room else "..." + row.name[3 - room :]
    return numbers + indent + name


def printable(text: str, stream: Any = None) -> str:
    """A text with escapes for what would steer a terminal, and for what the encoding of the stream
    lacks: of ``sys.stdout``, unless another one is given.
    """
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    return visible(text).encode(encoding, "backslashreplace").decode(encoding)
