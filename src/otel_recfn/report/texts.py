"""The report in words: Markdown for people and coding agents, JSON for programs, a few sentences, and text for a terminal."""

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
from otel_recfn.report.recording import (
    BACKWARD,
    COMPILATION,
    GPU,
    MODULE,
    OPERATOR,
    PYTHON,
    Recording,
)
from otel_recfn.report.rules import COMPILATIONS, LOADER, Finding, duration

MOST_NAMES = 30
"""The most rows of the table by name."""
_MARKUP = re.compile(r"[\\`*<>\[\]|]|\b_|_\b")
"""The signs in a line of text that mean something to Markdown."""

WORK_OF_KIND = {
    OPERATOR: "Other operators",
    BACKWARD: "Backward passes",
    MODULE: "Calls of modules",
    PYTHON: "Python functions",
    COMPILATION: "Compiling",
}
"""The work that ranges do, by their kind, as a sentence begins with it."""
WORK_OF_NAME = {
    LOADER: "Loading data",
    OPTIMIZER: "Optimizers",
    **dict.fromkeys(COMPILATIONS, WORK_OF_KIND[COMPILATION]),
}
"""The work of ranges whose names begin so, whatever their kind."""
THE_REST = "What isn't recorded (as Python between operators)"
THE_REST_AND_WAITING = (
    "What isn't recorded (as Python between operators, or waiting: this trace has no CPU time)"
)
LEAST_SHARE = 0.01
"""The least share of the time that is told."""

MOST_PATHS = 40
BAR_LENGTH = 10
"""The characters of a whole bar."""
LEAST_NAME_LENGTH = 30
"""The least room for a name, however narrow the terminal is; longer names lose their beginnings, as ends tell them apart."""


def markdown(title: str, seen: Recording, found: Sequence[Finding]) -> str:
    """The report as Markdown: findings, what took the time, and the names with most time for themselves."""
    by_name = _names_with_times(seen)
    whole = sum(row["self_us"] for row in by_name)
    lines = [f"# {_escaped(title)}", "", "## Look at this first", ""]
    lines += [_finding_item(number, finding) for number, finding in enumerate(found, 1)] or [
        "Nothing stands out."
    ]
    lines += [
        "",
        "## What took the time",
        "",
        *[f"- {_escaped(text)}" for text in what_took_the_time(seen)],
    ]
    lines += ["", "## By name", "", "Self is the time without what ran inside.", ""]
    lines += ["| Name | Self % | Self | Total | Count |", "|---|---:|---:|---:|---:|"]
    lines += [_name_row(row, whole) for row in by_name[:MOST_NAMES]]
    if len(by_name) > MOST_NAMES:
        lines += ["", f"{len(by_name) - MOST_NAMES:,} more names are not shown."]
    return "\n".join(lines) + "\n"


def as_json(title: str, seen: Recording, found: Sequence[Finding]) -> dict[str, Any]:
    """The report as data of types that JSON has; times are in microseconds."""
    return {
        "title": title,
        "processes": [process.label for process in seen.processes],
        "findings": [{**finding._asdict(), "anchor": list(finding.anchor)} for finding in found],
        "what_took_the_time": what_took_the_time(seen),
        "by_name": _names_with_times(seen),
    }


def headline(finding: Finding) -> str:
    """The title of a finding, with its share of the time."""
    return f"{finding.title}, {finding.share:.0%} of the time"


def _finding_item(number: int, finding: Finding) -> str:
    parts = [
        f"{number}. **{_escaped(headline(finding))}{' (serious)' if finding.serious else ''}.** {_escaped(finding.text)}"
    ]
    parts.append(f"Next: {_escaped(finding.next_step)}")
    parts.append(
        f"Where: {' > '.join(map(_code, finding.anchor))}"
        + (f", {_code(finding.code)}" if finding.code else "")
    )
    return "\n   ".join(parts)


def _name_row(row: dict[str, Any], whole: float) -> str:
    cells = [
        _code(row["name"]).replace("|", "\\|"),
        share_text(row["self_us"], whole),
        time_text(row["self_us"]),
    ]
    return f"| {' | '.join([*cells, time_text(row['total_us']), format(row['count'], ',')])} |"


def _escaped(text: str) -> str:
    """A text in one line of Markdown, with escapes for signs that mean something there."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _code(name: str) -> str:
    """A name as code in one line of Markdown, whatever signs are in it."""
    text = " ".join(name.split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _names_with_times(seen: Recording) -> list[dict[str, Any]]:
    shown = table(seen)
    columns = [shown[name] for name in ("names", "count", "total", "self")]
    return [
        {"name": name, "count": count, "total_us": total / 1000, "self_us": own / 1000}
        for name, count, total, own in zip(*columns, strict=True)
    ]


def what_took_the_time(seen: Recording) -> list[str]:
    """The sentences, at most five, that say how much of the time each kind of work took, and which operation most of that."""
    inside: dict[str, Counter[str]] = {}
    for path, kind in enumerate(_work_of_paths(seen)):
        if kind and seen.path_kind[path] != GPU:
            inside.setdefault(kind, Counter())[seen.names[path]] += int(
                seen.sums_by_path.self_ns[path]
            )
    times = Counter({kind: parts.total() for kind, parts in inside.items()})
    times[THE_REST if bool((seen.cpu_ns >= 0).any()) else THE_REST_AND_WAITING] = max(
        seen.whole_ns - times.total(), 0
    )
    told = [(kind, ns) for kind, ns in times.most_common(5) if ns >= LEAST_SHARE * seen.whole_ns]
    return [
        f"{kind} took {ns / seen.whole_ns:.0%} of the time, {duration(ns)}{_main_operation(inside.get(kind), ns)}."
        for kind, ns in told
    ]


def _work_of_paths(seen: Recording) -> list[str]:
    """The work of each path: that of the outermost path around it, except blocks and Python functions, which hold any work."""
    kinds = [
        next((work for prefix, work in WORK_OF_NAME.items() if name.startswith(prefix)), "")
        for name in seen.names
    ]
    kinds = [
        work or WORK_OF_KIND.get(kind, "")
        for work, kind in zip(kinds, seen.path_kind.tolist(), strict=True)
    ]
    for path, above in enumerate(seen.paths.above.tolist()):
        if above >= 0 and kinds[above] not in ("", WORK_OF_KIND[PYTHON]):
            kinds[path] = kinds[above]
    return kinds


def _main_operation(parts: Counter[str] | None, whole_ns: int) -> str:
    """The end of a sentence: the operation that had most of the time, unless it had all or next to nothing."""
    if not parts:
        return ""
    name, ns = parts.most_common(1)[0]
    return (
        f": {name} itself {duration(ns)} of it"
        if LEAST_SHARE <= ns / whole_ns <= 1 - LEAST_SHARE
        else ""
    )


def tree_with_bars(tree: CallTree, found: Sequence[Finding], lost: Mapping[str, int]) -> str:
    """The text of the findings and of the tree of calls, with bars: at most 40 paths, cut to the width of the terminal."""
    width = shutil.get_terminal_size().columns
    rows = tree.shown(MOST_PATHS)
    whole = sum(row.cpu_time_total for row in tree if len(row.path) == 1)
    lines = [
        f"{'!' if finding.serious else '-'} {headline(finding)}: {finding.text}"
        for finding in found
    ]
    lines += [*([""] if found else []), *[_path_line(row, whole, width) for row in rows]]
    if len(rows) < len(tree):
        lines.append(
            f"{len(tree) - len(rows):,} more paths are not shown: tree().table(row_limit=-1) has them all"
        )
    if lost:
        lines.append(
            f"Lost, and not in these sums: {', '.join([f'{name}={count}' for name, count in lost.items()])}"
        )
    return "\n".join(lines) or "Nothing was recorded."


def _path_line(row: CallPath, whole: float, width: int) -> str:
    share = row.cpu_time_total / whole if whole else 0.0
    bar = (("█" if printable("█") == "█" else "#") * round(min(share, 1.0) * BAR_LENGTH)).ljust(
        BAR_LENGTH
    )
    numbers = f"{share_text(share, 1.0):>8} {bar} {time_text(row.cpu_time_total):>10} {row.count or '':>7}  "
    indent = "  " * (len(row.path) - 1)
    room = max(width - len(numbers) - len(indent), LEAST_NAME_LENGTH)
    return numbers + indent + (row.name if len(row.name) <= room else "..." + row.name[3 - room :])


def printable(text: str) -> str:
    """A text with escapes for what the output's encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
