"""What a notebook shows of a profile: the page of a report in a frame, or a table where the notebook may run no scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence

from otel_recfn.batches.averages import KeyAverage, share_text, time_text
from otel_recfn.report.report import Report

MOST_BYTES = 250_000
"""Of the page: it is kept in the notebook's file."""
MOST_ROWS = 20
HEIGHT = 720


def in_notebook(report: Report, averages: Sequence[KeyAverage]) -> str:
    """The page in a frame that can reach nothing of the notebook's, and a table.

    A notebook that isn't trusted takes out frames and styles alike, so that what the style hides is seen there.

    Args:
        report: whose page it is.
        averages: what the table shows.
    """
    source = report.html(MOST_BYTES).replace("&", "&amp;").replace("'", "&#39;")
    look = f"width:100%;height:{HEIGHT}px;border:1px solid #8884;border-radius:6px"
    return (
        f"<style>.otel-recfn-table{{display:none}}</style><div class='otel-recfn-table'>{table(averages)}</div>"
        f"<iframe sandbox='allow-scripts' title='Profile' style='{look}' srcdoc='{source}'></iframe>"
    )


def table(averages: Sequence[KeyAverage]) -> str:
    """The names with most time for themselves."""
    whole = sum(one.self_cpu_time_total for one in averages)
    rows = sorted(averages, key=lambda one: -one.self_cpu_time_total)[:MOST_ROWS]
    head = "".join([f"<th>{title}</th>" for title in ("Name", "Self %", "Self", "Total", "Count")])
    body = "".join([_row(*_cells(one, whole)) for one in rows])
    rest = f"<p>{len(averages) - len(rows):,} more names are not shown.</p>" if len(rows) < len(averages) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _row(name: str, *numbers: str) -> str:
    cells = "".join([f"<td style='text-align:right'>{number}</td>" for number in numbers])
    return f"<tr><td style='text-align:left'>{html.escape(name)}</td>{cells}</tr>"


def _cells(one: KeyAverage, whole: float) -> list[str]:
    times = [time_text(one.self_cpu_time_total), time_text(one.cpu_time_total)]
    return [one.key, share_text(one.self_cpu_time_total, whole), *times, f"{one.count:,}"]
