"""The events of a trace that were not read: how many, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from otel_recfn.report.traces.phases import SLICES, WITHOUT_TIMES

MAX_REASONS = 6
"""The maximum number of reasons that a sentence names."""


class UnreadEvents:
    """The number of events that were not read, by reason.

    A reason is the end of a sentence: "3 of 10 events were not read: 2 without a phase, ...".
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, reason: str, count: int = 1) -> None:
        """Count events that were not read for this reason."""
        self._counts[reason] += count

    def add_unreadable(self, event: Any) -> None:
        """Count an event of which something is missing or has no meaning, unless it shows no time
        of the program anyway.
        """
        phase = event.get("ph") if isinstance(event, dict) else None
        if not isinstance(event, dict):
            self.add("not an object")
        elif not isinstance(phase, str) or not phase:
            self.add("without a phase")
        elif phase == "e":
            self.add("without a begin")
        elif phase in SLICES or phase == "E":
            self.add("without a name or a time")
        elif phase not in WITHOUT_TIMES:
            self.add(f"of phase {phase[:1]}")

    def sentence(self, seen: int) -> str:
        """How many of all events were not read, and why, without a full stop; empty if all were
        read.
        """
        reasons = [
            f"{count:,} {reason}"
            for reason, count in self._counts.most_common(MAX_REASONS)
            if count
        ]
        if not reasons:
            return ""
        count = self._counts.total()
        were = "was" if count == 1 else "were"
        return f"{count:,} of {seen:,} events {were} not read: {', '.join(reasons)}"
