"""A profile in a terminal: what to look at first, and the tree of calls with bars."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from otel_recfn.batches.averages import share_text, time_text
from otel_recfn.batches.call_paths import CallPath, CallTree
from otel_recfn.report.rules import Finding
from otel_recfn.report.texts import headline

MOST_LINES = 40
BAR = 10
"""Characters of a whole bar."""
BLOCKS = " ▏▎▍▌▋▊▉█"
LEAST_NAME = 30
"""Characters that names have, however narrow the terminal is; of longer ones the end tells them apart."""


def tree_with_bars(tree: CallTree, found: Sequence[Finding], lost: Mapping[str, int]) -> str:
    """As many lines as a screen has or two, no longer than the terminal is wide."""
    width = shutil.get_terminal_size().columns
    rows = tree.shown(MOST_LINES)
    whole = sum(row.cpu_time_total for row in tree if len(row.path) == 1)
    lines = [f"{'!' if finding.serious else '-'} {headline(finding)}: {finding.text}" for finding in found]
    lines += [*([""] if found else []), *[_line(row, whole, width) for row in rows]]
    if len(rows) < len(tree):
        lines.append(f"{len(tree) - len(rows):,} more paths are not shown: tree().table(row_limit=-1) has them all")
    if lost:
        lines.append(f"Lost, and not in these sums: {', '.join([f'{name}={count}' for name, count in lost.items()])}")
    return "\n".join(lines)


def _line(row: CallPath, whole: float, width: int) -> str:
    share = row.cpu_time_total / whole if whole else 0.0
    numbers = f"{share_text(share, 1.0):>8} {bar(share)} {time_text(row.cpu_time_total):>10} {row.count or '':>7}  "
    indent = "  " * (len(row.path) - 1)
    room = max(width - len(numbers) - len(indent), LEAST_NAME)
    return numbers + indent + (row.name if len(row.name) <= room else "..." + row.name[3 - room :])


def bar(share: float) -> str:
    """A bar of BAR characters for a share of the whole, in eighths where the terminal has such signs."""
    eighths = round(min(max(share, 0.0), 1.0) * BAR * 8)
    if not _shows(BLOCKS):
        return ("#" * round(eighths / 8)).ljust(BAR)
    full, part = divmod(eighths, 8)
    return (BLOCKS[-1] * full + (BLOCKS[part] if part else "")).ljust(BAR)


def _shows(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
