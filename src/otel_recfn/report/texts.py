"""A report without a picture: as Markdown for people and coding agents, and as JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from otel_recfn.batches.averages import KeyAverage, key_averages, share_text, time_text
from otel_recfn.report.process import Finding, Process
from otel_recfn.report.words import what_took_the_time

MOST_NAMES = 30
"""Rows of the table by name."""
_MEANS_SOMETHING = re.compile(r"[\\`*<>\[\]|]|\b_|_\b")
"""To Markdown, in a line of text."""


def markdown(title: str, processes: Sequence[Process], found: Sequence[Finding]) -> str:
    """Findings, what took the time, and the names with most time for themselves."""
    by_name = _by_name(processes)
    whole = sum(row["self_us"] for row in by_name)
    lines = [f"# {_plain(title)}", "", "## Look at this first", ""]
    lines += [_item(number, finding) for number, finding in enumerate(found, 1)] or ["Nothing stands out."]
    lines += ["", "## What took the time", "", *[f"- {_plain(text)}" for text in what_took_the_time(processes)]]
    lines += ["", "## By name", "", "Self is the time without what ran inside.", ""]
    lines += ["| Name | Self % | Self | Total | Count |", "|---|---:|---:|---:|---:|"]
    lines += [_row(row, whole) for row in by_name[:MOST_NAMES]]
    if len(by_name) > MOST_NAMES:
        lines += ["", f"{len(by_name) - MOST_NAMES:,} more names are not shown."]
    return "\n".join(lines) + "\n"


def as_json(title: str, processes: Sequence[Process], found: Sequence[Finding]) -> dict[str, Any]:
    """The same as JSON can say it; times in microseconds."""
    return {
        "title": title,
        "processes": [process.label for process in processes],
        "findings": [{**finding._asdict(), "anchor": list(finding.anchor)} for finding in found],
        "what_took_the_time": what_took_the_time(processes),
        "by_name": _by_name(processes),
    }


def _item(number: int, finding: Finding) -> str:
    parts = [f"{number}. **{_plain(finding.title)}{' (serious)' if finding.serious else ''}.** {_plain(finding.text)}"]
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


def _by_name(processes: Sequence[Process]) -> list[dict[str, Any]]:
    """The names of all processes, those with most time for themselves first."""
    sums: dict[str, dict[str, Any]] = {}
    for process in processes:
        for average in key_averages(process.batch):
            _add(sums.setdefault(average.key, {"name": average.key, "count": 0, "total_us": 0.0, "self_us": 0.0}), average)
    return sorted(sums.values(), key=lambda row: -row["self_us"])


def _add(row: dict[str, Any], average: KeyAverage) -> None:
    row["count"] += average.count
    row["total_us"] = round(row["total_us"] + average.cpu_time_total, 3)
    row["self_us"] = round(row["self_us"] + average.self_cpu_time_total, 3)
