"""The report in words: Markdown for people and coding agents, JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from otel_recfn.batches.text_tables import share_text, time_text
from otel_recfn.report.finding import Finding
from otel_recfn.report.flame import table
from otel_recfn.report.kinds import GPU
from otel_recfn.report.recording import Recording
from otel_recfn.report.sentences import device_rows, what_the_gpu_did, what_took_the_time
from otel_recfn.support.texts import visible

MAX_NAMES = 30
"""The maximum number of rows of the table by name."""
_MARKUP = re.compile(r"[\\`*<>\[\]|]|\b_|_\b")
"""The signs in a line of text that mean something to Markdown."""

SHARE_MEANING = (
    "its share of the run: if n threads work at once, each has an nth of the moment, and a GPU none"
)


def markdown(
    title: str, seen: Recording, found: Sequence[Finding], notes: Sequence[str] = ()
) -> str:
    """The report as Markdown: notes, findings, what took the time, and the names with most time
    for themselves.
    """
    findings = [_finding_item(number, finding) for number, finding in enumerate(found, 1)]
    lines = [f"# {_escaped(title)}", ""]
    lines += [f"{_escaped(note)}\n" for note in notes]
    lines += ["## Look at this first", "", *(findings or ["Nothing stands out."])]
    lines += ["", "## What took the time", "", *_items(what_took_the_time(seen))]
    if gpu_sentences := what_the_gpu_did(seen):
        lines += ["", "## What the GPU did", "", *_items(gpu_sentences)]
    lines += ["", "## By name", "", *_table_by_name(seen)]
    return visible("\n".join(lines) + "\n")


def _items(sentences: Sequence[str]) -> list[str]:
    return [f"- {_escaped(sentence)}" for sentence in sentences]


def _table_by_name(seen: Recording) -> list[str]:
    """The lines of the table with the names that have most time for themselves."""
    by_name = _names_with_times(seen)
    lines = [f"Self is the time without what ran inside, Self % {SHARE_MEANING}.", ""]
    lines += ["| Name | Self % | Self | Total | Count |", "|---|---:|---:|---:|---:|"]
    lines += [_name_row(row) for row in by_name[:MAX_NAMES]]
    if len(by_name) > MAX_NAMES:
        lines += ["", f"{len(by_name) - MAX_NAMES:,} more names are not shown."]
    return lines


def as_json(
    title: str, seen: Recording, found: Sequence[Finding], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The report as data of types that JSON has; times are in microseconds."""
    return {
        "title": title,
        "notes": list(notes),
        "processes": [process.label for process in seen.processes],
        "findings": [{**finding._asdict(), "anchor": list(finding.anchor)} for finding in found],
        "what_took_the_time": what_took_the_time(seen),
        "gpu": device_rows(seen),
        "by_name": _names_with_times(seen),
    }


def _finding_item(number: int, finding: Finding) -> str:
    parts = [
        f"{number}. **{_escaped(finding.headline)}{' (serious)' if finding.serious else ''}.**"
        f" {_escaped(finding.text)}"
    ]
    parts.append(f"Next: {_escaped(finding.next_step)}")
    parts.append(
        f"Where: {' > '.join(map(_code, finding.anchor))}"
        + (f", {_code(finding.code)}" if finding.code else "")
    )
    return "\n   ".join(parts)


def _name_row(row: dict[str, Any]) -> str:
    share = "" if row["self_share"] is None else share_text(row["self_share"], 1.0)
    cells = [_code(row["name"]).replace("|", "\\|"), share, time_text(row["self_us"])]
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
    names_table = table(seen)
    columns = [names_table[name] for name in ("names", "count", "total", "self", "shared", "kind")]
    return [
        {
            "name": name,
            "count": count,
            "total_us": total / 1000,
            "self_us": own / 1000,
            "self_share": None if kind == GPU else shared / names_table["whole"],
        }
        for name, count, total, own, shared, kind in zip(*columns, strict=True)
    ]
