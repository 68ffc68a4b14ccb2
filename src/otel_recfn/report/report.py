"""The report: what was recorded, as a page or in words.

processes, each with a Batch ──► Recording ──► tree of calls, time line, table, findings ──► JSON ──► one HTML file

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
from otel_recfn.model.events import EventKind
from otel_recfn.report.flame import flame, table
from otel_recfn.report.page import in_frame, page
from otel_recfn.report.recording import KINDS, Process, Recording, label_of, short
from otel_recfn.report.rules import Finding, findings
from otel_recfn.report.texts import as_json, markdown, what_took_the_time
from otel_recfn.report.timeline import timeline

FORMS = ("html", "md", "json")
MOST_BYTES, MOST_BYTES_IN_NOTEBOOK = 2_000_000, 250_000
"""Of the page; a notebook's is kept in its file."""
FRAMES, BOXES, NAMES = 6000, 9000, 1500
"""How much a page shows where it fits."""


class Report:
    """What was recorded, as a page.

    Args:
        processes: what each recorded.
        title: what the page is called.
        notes: what else is to be known, such as what was lost.

    Raises:
        TraceFileError: nothing was recorded.
    """

    def __init__(self, processes: Sequence[Process], title: str = "otel-recfn", notes: Sequence[str] = ()) -> None:
        recorded = [process for process in processes if bool((process.batch.kind == EventKind.RANGE).any())]
        if not recorded:
            raise TraceFileError("there are no ranges to show; run something while the profile records")
        self._seen, self._title, self._notes = Recording(recorded), title, list(notes)

    @cached_property
    def findings(self) -> list[Finding]:
        """What to look at first."""
        processes = self._seen.processes
        return findings([self._seen] if len(processes) == 1 else [Recording([process]) for process in processes])

    def html(self, most_bytes: int = MOST_BYTES) -> str:
        """The page; frames, boxes and names are left out, the shortest first, until it is so small."""
        for halved in range(12):
            text = page(self._title, self._shown(halved))
            if len(text) <= most_bytes:
                break
        return text

    def in_notebook(self) -> str:
        """The page in a frame, or a table where the notebook may run no scripts."""
        return in_frame(self.html(MOST_BYTES_IN_NOTEBOOK), table(self._seen))

    def sentences(self) -> list[str]:
        """What took the time, in at most five."""
        return what_took_the_time(self._seen)

    def text(self, form: str) -> str:
        """The page, or the same in words for people (``md``) or programs (``json``): one of FORMS.

        Raises:
            SettingError: another one.
        """
        if form == "html":
            return self.html()
        if form == "md":
            return markdown(self._title, self._seen, self.findings)
        if form == "json":
            return json.dumps(as_json(self._title, self._seen, self.findings), indent=1) + "\n"
        raise SettingError(f"a report is no {form or 'file without an ending'}; allowed: {', '.join(FORMS)}")

    def write(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write the page, or the words, to a file, whatever stood there: its ending says which, where no form is given.

        Raises:
            SettingError: it ends in none of FORMS.
            OSError: it can't be written.
        """
        text = self.text(Path(path).suffix[1:].lower() if form is None else form)
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")

    def _shown(self, halved: int) -> dict[str, Any]:
        return {
            "title": self._title,
            "facts": self._facts(),
            "notes": self._notes,
            "kinds": KINDS,
            "findings": [self._shown_finding(finding) for finding in self.findings],
            "flame": flame(self._seen, max(8, FRAMES >> halved)),
            "timeline": timeline(self._seen, max(8, BOXES >> halved)),
            "table": table(self._seen, max(8, NAMES >> halved)),
        }

    def _shown_finding(self, finding: Finding) -> dict[str, Any]:
        """With the names that frames have."""
        process = [finding.process] if len(self._seen.processes) > 1 else []
        return {**finding._asdict(), "anchor": [*process, *(short(label_of(name)) for name in finding.anchor)]}

    def _facts(self) -> dict[str, Any]:
        seen = self._seen
        first_ns = int(seen.start_ns.min())
        return {
            "ranges": len(seen),
            "threads": len(np.unique(seen.lane)),
            "processes": len(seen.processes),
            "length": int(seen.end_ns.max()) - first_ns,
            "began": datetime.fromtimestamp(first_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "memory": bool(seen.allocated.any()),
        }
