"""The report in words: Markdown for people and coding agents, JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from otel_recfn.batches.text_tables import share_text, time_text
from otel_recfn.batches.wall import OUTSIDE, StepTime
from otel_recfn.report.finding import Finding
from otel_recfn.report.flame import table
from otel_recfn.report.kinds import GPU
from otel_recfn.report.recording import Recording
from otel_recfn.report.sentences import (
    describe_gpu,
    describe_time,
    device_rows,
    wall_sentences,
)
from otel_recfn.support.safe_texts import visible

MAX_NAMES = 30
"""The maximum number of rows of the table by name."""
MAX_STEPS = 30
"""The same of the table by step."""
_MARKUP = re.compile(r"[\\`*<>\[\]|]|\b_|_\b")
"""The signs in a line of text that mean something to Markdown."""

SHARE_MEANING = (
    "its share of the wall time: if n threads work at once, each has an nth of the moment, and a"
    " GPU none"
)


def markdown(
    title: str, recording: Recording, found: Sequence[Finding], notes: Sequence[str] = ()
) -> str:
    """The report as Markdown: notes, findings, what took the time, and the names with most time
    for themselves.
    """
    findings = [_finding_item(number, finding) for number, finding in enumerate(found, 1)]
    lines = [f"# {_escaped(title)}", ""]
    lines += [f"{_escaped(note)}\n" for note in notes]
    lines += ["## Look at this first", "", *(findings or ["Nothing stands out."])]
    sentences = [*wall_sentences(recording), *describe_time(recording)]
    lines += ["", "## What took the time", "", *_items(sentences)]
    if steps := _step_rows(recording):
        lines += ["", "## By step", "", *_table_by_step(steps)]
    if gpu_sentences := describe_gpu(recording):
        lines += ["", "## What the GPU did", "", *_items(gpu_sentences)]
    lines += ["", "## By name", "", *_table_by_name(recording)]
    return visible("\n".join(lines) + "\n")


def _items(sentences: Sequence[str]) -> list[str]:
    return [f"- {_escaped(sentence)}" for sentence in sentences]


def _table_by_name(recording: Recording) -> list[str]:
    """The lines of the table with the names that have most time for themselves."""
    by_name = _names_with_times(recording)
    lines = [f"Self is the time without what ran inside, Self % {SHARE_MEANING}.", ""]
    lines += ["| Name | Self % | Self | Total | Count |", "|---|---:|---:|---:|---:|"]
    lines += [_name_row(row) for row in by_name[:MAX_NAMES]]
    if len(by_name) > MAX_NAMES:
        lines += ["", f"{len(by_name) - MAX_NAMES:,} more names are not shown."]
    return lines


def _step_rows(recording: Recording) -> list[tuple[str, StepTime]]:
    """The steps with the name of their thread, in order."""
    return [
        (thread.name, step)
        for wall in recording.walls
        for thread in wall.threads
        for step in thread.steps
    ]


def _table_by_step(steps: Sequence[tuple[str, StepTime]]) -> list[str]:
    """The lines of the table with the steps that have most time outside PyTorch, in order."""
    longest = sorted(range(len(steps)), key=lambda index: -steps[index][1].outside_ns)
    lines = [f"| Step | Thread | Wall | {OUTSIDE} | {OUTSIDE} % |", "|---|---|---:|---:|---:|"]
    for index in sorted(longest[:MAX_STEPS]):
        thread, step = steps[index]
        times = [time_text(ns / 1000) for ns in (step.wall_ns, step.outside_ns)]
        cells = [_cell(step.name), _cell(thread), *times, share_text(step.outside_ns, step.wall_ns)]
        lines.append(f"| {' | '.join(cells)} |")
    if len(steps) > MAX_STEPS:
        lines += ["", f"{len(steps) - MAX_STEPS:,} steps with less time {OUTSIDE} are not shown."]
    return lines


def _walls(recording: Recording) -> list[dict[str, Any]]:
    """The wall time of each process as data."""
    return [
        {
            "process": process.label,
            "wall_us": wall.ns / 1000,
            "threads": [
                {
                    "thread": thread.name,
                    "recorded_us": thread.recorded_ns / 1000,
                    "outside_us": thread.outside_ns / 1000,
                    "between_steps_us": thread.between_steps_ns / 1000,
                    "functions": [
                        {"name": each.name, "time_us": each.time, "samples": each.count}
                        for each in thread.functions
                    ],
                    "steps": [
                        {
                            "step": step.name,
                            "wall_us": step.wall_ns / 1000,
                            "outside_us": step.outside_ns / 1000,
                        }
                        for step in thread.steps
                    ],
                }
                for thread in wall.threads
            ],
        }
        for process, wall in zip(recording.processes, recording.walls, strict=True)
    ]


def as_json(
    title: str, recording: Recording, found: Sequence[Finding], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The report as data of types that JSON has; times are in microseconds."""
    return {
        "title": title,
        "notes": list(notes),
        "processes": [process.label for process in recording.processes],
        "findings": [{**finding._asdict(), "anchor": list(finding.anchor)} for finding in found],
        "wall": _walls(recording),
        "what_took_the_time": describe_time(recording),
        "gpu": device_rows(recording),
        "by_name": _names_with_times(recording),
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
    cells = [_cell(row["name"]), share, time_text(row["self_us"])]
    return f"| {' | '.join([*cells, time_text(row['total_us']), format(row['count'], ',')])} |"


def _escaped(text: str) -> str:
    """A text in one line of Markdown, with escapes for signs that mean something there."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _cell(name: str) -> str:
    """A name as code in a table."""
    return _code(name).replace("|", "\\|")


def _code(name: str) -> str:
    """A name as code in one line of Markdown, whatever signs are in it."""
    text = " ".join(name.split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _names_with_times(recording: Recording) -> list[dict[str, Any]]:
    names_table = table(recording)
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
