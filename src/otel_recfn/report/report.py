"""The report of a recording, as a page, in words or as data.

    processes, each with a Batch ──► Recording ──► tree of calls, time line, table, findings
                                 ──► JSON ──► one HTML file

All is summed up before it is written, so that a page of a million ranges is as small, and opens as
fast, as one of thousands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import numpy as np

from otel_recfn.errors import SettingError, TraceFileError
from otel_recfn.model.events import RowKind
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.flame import flame, table
from otel_recfn.report.kinds import KINDS
from otel_recfn.report.labels import label_of, shorten
from otel_recfn.report.page import in_frame, page
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.sentences import describe_gpu, describe_time, wall_sentences
from otel_recfn.report.texts import as_json, markdown
from otel_recfn.report.timeline import timeline
from otel_recfn.support.files import for_this_user
from otel_recfn.support.paths import file_path

FORMS = ("html", "md", "json")
MAX_BYTES, MAX_BYTES_IN_NOTEBOOK = 2_000_000, 250_000
"""The most bytes of a page; a notebook keeps its page in its own file."""
FRAMES, BOXES, NAMES = 6000, 9000, 1500
"""The most of each that a page shows; fewer if its bytes would be too many."""
STEPS = 300
"""The most steps that a page lists: users look at the slowest."""


class Report:
    """A report of what processes recorded.

    Args:
        processes: the processes; those that recorded no range are left out.
        title: the report's title.
        notes: sentences that the report shows too, such as what was lost.

    Raises:
        TraceFileError: no range was recorded.
    """

    def __init__(
        self, processes: Sequence[Process], title: str = "otel-recfn", notes: Sequence[str] = ()
    ) -> None:
        recorded = [
            process for process in processes if bool((process.batch.kind == RowKind.RANGE).any())
        ]
        if not recorded:
            raise TraceFileError(
                "there are no ranges to show; run something while the profile records"
            )
        self._recording = Recording(recorded)
        self._title = title
        self._notes = list(notes)

    @cached_property
    def findings(self) -> list[Finding]:
        """The things to look at first, at most five."""
        processes = self._recording.processes
        return findings(
            [self._recording]
            if len(processes) == 1
            else [
                Recording([each], [other for other in processes if other is not each])
                for each in processes
            ]
        )

    def html(self, max_bytes: int = MAX_BYTES) -> str:
        """The page; to keep it below so many bytes, the shortest frames, boxes and names are
        left out.
        """
        for halved in range(12):
            text = page(self._title, self._page_data(halved))
            if len(text) <= max_bytes:
                break
        return text

    def in_notebook(self) -> str:
        """The page for a notebook, with a table where that may run no scripts."""
        return in_frame(self.html(MAX_BYTES_IN_NOTEBOOK), table(self._recording), self._notes)

    def sentences(self) -> list[str]:
        """The sentences that say the wall time, and what took it."""
        return [*wall_sentences(self._recording), *describe_time(self._recording)]

    def text(self, form: str) -> str:
        """The report in one of FORMS: the page, words for people (``md``) or data for programs
        (``json``).

        Raises:
            SettingError: the form is none of FORMS.
        """
        if form == "html":
            return self.html()
        if form == "md":
            return markdown(self._title, self._recording, self.findings, self._notes)
        if form == "json":
            return (
                json.dumps(
                    as_json(self._title, self._recording, self.findings, self._notes), indent=1
                )
                + "\n"
            )
        raise SettingError(
            f"a report is no {form or 'file without an ending'}; allowed: {', '.join(FORMS)}"
        )

    def write(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write the report to a file, which is replaced, in the given form; without one, in the
        form of the file's ending.

        Raises:
            SettingError: the form is none of FORMS.
            OSError: the file can't be written.
        """
        output_path = file_path(path)
        text = self.text(output_path.suffix[1:].lower() if form is None else form)
        with open(
            output_path, "w", encoding="utf-8", errors="backslashreplace", opener=for_this_user
        ) as file:
            file.write(text)

    def _page_data(self, halved: int) -> dict[str, Any]:
        return {
            "title": self._title,
            "facts": self._facts(),
            "notes": self._notes,
            "kinds": KINDS,
            "findings": [self._finding_data(finding) for finding in self.findings],
            "sentences": self.sentences(),
            "steps": self._longest_steps(max(8, STEPS >> halved)),
            "gpu": describe_gpu(self._recording),
            "flame": flame(self._recording, max(8, FRAMES >> halved)),
            "timeline": timeline(self._recording, max(8, BOXES >> halved)),
            "table": table(self._recording, max(8, NAMES >> halved)),
        }

    def _finding_data(self, finding: Finding) -> dict[str, Any]:
        """The finding as data, with the names that the flame graph's frames have."""
        process = [finding.process] if len(self._recording.processes) > 1 else []
        return {
            **finding._asdict(),
            "anchor": [*process, *(shorten(label_of(name)) for name in finding.anchor)],
        }

    def _longest_steps(self, limit: int) -> list[dict[str, Any]]:
        """The steps, the longest first, each with its begin in the time line."""
        recording = self._recording
        steps: list[dict[str, Any]] = [
            {
                "name": step.name,
                "process": process.label,
                "thread": thread.name,
                "start": step.start_ns - recording.begin_ns,
                "wall": step.wall_ns,
                "outside": step.outside_ns,
            }
            for process, wall in zip(recording.processes, recording.walls, strict=True)
            for thread in wall.threads
            for step in thread.steps
        ]
        return sorted(steps, key=lambda step: -step["wall"])[:limit]

    def _facts(self) -> dict[str, Any]:
        recording = self._recording
        first_ns = int(recording.start_ns.min())
        return {
            "ranges": len(recording),
            "threads": len(np.unique(recording.lane)),
            "processes": len(recording.processes),
            "length": int(recording.end_ns.max()) - first_ns,
            "began": datetime.fromtimestamp(first_ns / 1e9, timezone.utc).strftime(
                "%Y-%m-%d %H:%M:%S UTC"
            ),
            "memory": bool(recording.allocated.any()),
        }
