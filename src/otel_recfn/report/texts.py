"""A report in words: as Markdown for people and coding agents, as JSON for programs, in a few sentences, and in a terminal."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from otel_recfn.batches.averages import share_text, time_text
from otel_recfn.batches.call_paths import CallPath, CallTree
from otel_recfn.model.events import OPTIMIZER
from otel_recfn.report.flame import table
from otel_recfn.report.recording import BACKWARD, COMPILATION, GPU, MODULE, OPERATOR, PYTHON, Recording
from otel_recfn.report.rules import COMPILATIONS, LOADER, Finding, duration

MOST_NAMES = 30
"""Rows of the table by name."""
_MEANS_SOMETHING = re.compile(r"[\\`*<>\[\]|]|\b_|_\b")
"""To Markdown, in a line of text."""

WORK = {
    OPERATOR: "Other operators",
    BACKWARD: "Backward passes",
    MODULE: "Calls of modules",
    PYTHON: "Python functions",
    COMPILATION: "Compiling",
}
"""What is said of the time of ranges, by their kind."""
BY_NAME = {LOADER: "Loading data", OPTIMIZER: "Optimizers", **dict.fromkeys(COMPILATIONS, WORK[COMPILATION])}
"""The same by how their names begin."""
THE_REST = "What isn't recorded, as Python between operators,"
THE_REST_AND_WAITING = "What isn't recorded, as Python between operators, and waiting, as this trace has no CPU time,"
LEAST = 0.01
"""Of the time: what is told."""

MOST_LINES = 40
BAR = 10
"""Characters of a whole bar."""
LEAST_NAME = 30
"""Characters that names have, however narrow the terminal is; of longer ones the end tells them apart."""


def markdown(title: str, seen: Recording, found: Sequence[Finding]) -> str:
    """Findings, what took the time, and the names with most time for themselves."""
    by_name = _by_name(seen)
    whole = sum(row["self_us"] for row in by_name)
    lines = [f"# {_plain(title)}", "", "## Look at this first", ""]
    lines += [_item(number, finding) for number, finding in enumerate(found, 1)] or ["Nothing stands out."]
    lines += ["", "## What took the time", "", *[f"- {_plain(text)}" for text in what_took_the_time(seen)]]
    lines += ["", "## By name", "", "Self is the time without what ran inside.", ""]
    lines += ["| Name | Self % | Self | Total | Count |", "|---|---:|---:|---:|---:|"]
    lines += [_row(row, whole) for row in by_name[:MOST_NAMES]]
    if len(by_name) > MOST_NAMES:
        lines += ["", f"{len(by_name) - MOST_NAMES:,} more names are not shown."]
    return "\n".join(lines) + "\n"


def as_json(title: str, seen: Recording, found: Sequence[Finding]) -> dict[str, Any]:
    """The same as JSON can say it; times in microseconds."""
    return {
        "title": title,
        "processes": [process.label for process in seen.processes],
        "findings": [{**finding._asdict(), "anchor": list(finding.anchor)} for finding in found],
        "what_took_the_time": what_took_the_time(seen),
        "by_name": _by_name(seen),
    }


def headline(finding: Finding) -> str:
    """What it is, and how much of the time."""
    return f"{finding.title}, {finding.share:.0%} of the time"


def _item(number: int, finding: Finding) -> str:
    parts = [f"{number}. **{_plain(headline(finding))}{' (serious)' if finding.serious else ''}.** {_plain(finding.text)}"]
    parts.append(f"Next: {_plain(finding.next_step)}")
    parts.append(f"Where: {' > '.join(map(_code, finding.anchor))}" + (f", {_code(finding.code)}" if finding.code else ""))
    return "\n   ".join(parts)


def _row(row: dict[str, Any], whole: float) -> str:
    cells = [_code(row["name"]).replace("|", "\\|"), share_text(row["self_us"], whole), time_text(row["self_us"])]
    return f"| {' | '.join([*cells, time_text(row['total_us']), format(row['count'], ',')])} |"


def _plain(text: str) -> str:
    """As Markdown shows it: names may hold what means something there."""
    return _MEANS_SOMETHING.sub(r"\\\g<0>", " ".join(text.split()))


def _code(name: str) -> str:
    """A name in one line, whatever signs are in it."""
    text = " ".join(name.split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _by_name(seen: Recording) -> list[dict[str, Any]]:
    shown = table(seen)
    columns = [shown[name] for name in ("names", "count", "total", "self")]
    return [
        {"name": name, "count": count, "total_us": total / 1000, "self_us": own / 1000}
        for name, count, total, own in zip(*columns, strict=True)
    ]


def what_took_the_time(seen: Recording) -> list[str]:
    """At most five sentences, the longest first: the kinds of work that a program does, and what had most of each."""
    inside: dict[str, Counter[str]] = {}
    for path, kind in enumerate(_work(seen)):
        if kind and seen.path_kind[path] != GPU:
            inside.setdefault(kind, Counter())[seen.names[path]] += int(seen.sums.self_ns[path])
    times = Counter({kind: parts.total() for kind, parts in inside.items()})
    times[THE_REST if bool((seen.cpu_ns >= 0).any()) else THE_REST_AND_WAITING] = max(seen.whole_ns - times.total(), 0)
    told = [(kind, ns) for kind, ns in times.most_common(5) if ns >= LEAST * seen.whole_ns]
    return [
        f"{kind} took {ns / seen.whole_ns:.0%} of the time, {duration(ns)}{_most(inside.get(kind), ns)}." for kind, ns in told
    ]


def _work(seen: Recording) -> list[str]:
    """What each path does: as the outermost one around it does, but for blocks and Python functions, which hold any work."""
    kinds = [next((work for prefix, work in BY_NAME.items() if name.startswith(prefix)), "") for name in seen.names]
    kinds = [work or WORK.get(kind, "") for work, kind in zip(kinds, seen.path_kind.tolist(), strict=True)]
    for path, above in enumerate(seen.paths.above.tolist()):
        if above >= 0 and kinds[above] not in ("", WORK[PYTHON]):
            kinds[path] = kinds[above]
    return kinds


def _most(parts: Counter[str] | None, whole_ns: int) -> str:
    """Which operation had most of it, unless it had all."""
    if not parts:
        return ""
    name, ns = parts.most_common(1)[0]
    return f": {name} itself {duration(ns)} of it" if LEAST <= ns / whole_ns <= 1 - LEAST else ""


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
    return "\n".join(lines) or "Nothing was recorded."


def _line(row: CallPath, whole: float, width: int) -> str:
    share = row.cpu_time_total / whole if whole else 0.0
    bar = (("█" if printable("█") == "█" else "#") * round(min(share, 1.0) * BAR)).ljust(BAR)
    numbers = f"{share_text(share, 1.0):>8} {bar} {time_text(row.cpu_time_total):>10} {row.count or '':>7}  "
    indent = "  " * (len(row.path) - 1)
    room = max(width - len(numbers) - len(indent), LEAST_NAME)
    return numbers + indent + (row.name if len(row.name) <= room else "..." + row.name[3 - room :])


def printable(text: str) -> str:
    """A text with escapes for what the output's encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
