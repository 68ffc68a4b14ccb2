"""The report: what was recorded, as a page or in words.

processes, each with a Batch ──► rows ──► tree of calls, time line, table ──► JSON ──► one HTML file

All is summed up before it is written, so that a page of a million ranges is as small, and opens as fast, as one of thousands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from otel_recfn.errors import SettingError, TraceFileError
from otel_recfn.report.findings import findings
from otel_recfn.report.flame import flame, table
from otel_recfn.report.page import page
from otel_recfn.report.process import Finding, Process
from otel_recfn.report.rows import KINDS, Rows, label_of, rows_of
from otel_recfn.report.texts import as_json, markdown
from otel_recfn.report.timeline import timeline

FORMS = ("html", "md", "json")
MOST_BYTES = 2_000_000
FRAMES, BOXES, NAMES = 6000, 9000, 1500
"""How much a page shows where it fits."""


class Report:
    """What was recorded, as a page.

    Args:
        processes: what each recorded.
        title: what the page is called.
        found: the findings that stand above the picture.
        notes: what else is to be known, such as what was lost.
    """

    def __init__(
        self, processes: Sequence[Process], title: str, found: Sequence[Finding] = (), notes: Sequence[str] = ()
    ) -> None:
        self._processes, self._title, self.findings, self._notes = list(processes), title, list(found), list(notes)

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self._processes)

    def html(self, most_bytes: int = MOST_BYTES) -> str:
        """The page; frames, boxes and names are left out, the shortest first, until it is so small."""
        for halved in range(12):
            text = page(self._title, self._shown(halved))
            if len(text) <= most_bytes:
                break
        return text

    def markdown(self) -> str:
        """The same in words, for people and coding agents."""
        return markdown(self._title, self._processes, self.findings)

    def json(self) -> str:
        """The same for programs; times in microseconds."""
        return json.dumps(as_json(self._title, self._processes, self.findings), indent=1) + "\n"

    def text(self, form: str) -> str:
        """The page, or the words, by the ending that such a file has: one of FORMS.

        Raises:
            SettingError: another one.
        """
        if form not in FORMS:
            raise SettingError(f"a report is no {form or 'file without an ending'}; allowed: {', '.join(FORMS)}")
        return {"html": self.html, "md": self.markdown, "json": self.json}[form]()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page, or the words, to a file, whatever stood there: its ending says which.

        Raises:
            SettingError: it ends in none of FORMS.
            OSError: it can't be written.
        """
        text = self.text(Path(path).suffix[1:].lower())
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")

    def _shown(self, halved: int) -> dict[str, Any]:
        labels = [process.label for process in self._processes]
        return {
            "title": self._title,
            "facts": self._facts(),
            "notes": self._notes,
            "kinds": KINDS,
            "findings": [self._shown_finding(finding) for finding in self.findings],
            "flame": flame(self._rows, labels, max(8, FRAMES >> halved)),
            "timeline": timeline(self._rows, labels, max(8, BOXES >> halved)),
            "table": table(self._rows, max(8, NAMES >> halved)),
        }

    def _shown_finding(self, finding: Finding) -> dict[str, Any]:
        """With the names that frames have."""
        process = [finding.process] if finding.process and len(self._processes) > 1 else []
        return {**finding._asdict(), "anchor": [*process, *[label_of(name) for name in finding.anchor]]}

    def _facts(self) -> dict[str, Any]:
        rows = self._rows
        first_ns = int(rows.start_ns.min())
        return {
            "ranges": len(rows.label),
            "threads": len(np.unique(rows.lane)),
            "processes": len(self._processes),
            "length": int((rows.start_ns + rows.total_ns).max()) - first_ns,
            "began": datetime.fromtimestamp(first_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "memory": bool(rows.allocated.any()),
        }


def report(processes: Sequence[Process], title: str = "otel-recfn", notes: Sequence[str] = ()) -> Report:
    """The report of these processes.

    Raises:
        TraceFileError: nothing was recorded.
    """
    recorded = [process for process in processes if bool((process.batch.kind == 0).any())]
    if not recorded:
        raise TraceFileError("there are no ranges to show; run something while the profile records")
    return Report(recorded, title, findings(recorded), notes)
