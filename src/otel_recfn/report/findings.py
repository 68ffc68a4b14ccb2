"""What to look at first in a report: what the rules found in each process, the worst of each rule, the most serious first."""

from __future__ import annotations

from collections.abc import Sequence

from otel_recfn.report.process import Finding, Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules import RULES, Rule

MOST = 5
"""Who is told more at once mends nothing."""


def findings(processes: Sequence[Process]) -> list[Finding]:
    """At most five, the most serious first."""
    recordings = [Recording(process) for process in processes]
    found = [worst for rule in RULES if (worst := _worst(rule, recordings)) is not None]
    return sorted(found, key=lambda each: (not each.serious, -each.share))[:MOST]


def _worst(rule: Rule, recordings: Sequence[Recording]) -> Finding | None:
    """Of what a rule finds in several processes, the one with the greatest share, which says how many there are."""
    found = [each._replace(process=seen.label) for seen in recordings if (each := rule(seen)) is not None]
    worst = max(found, key=lambda each: each.share, default=None)
    if worst is None or len(recordings) == 1:
        return worst
    return worst._replace(text=f"{worst.text} So in {len(found)} of {len(recordings)} processes; this is {worst.process}.")
