"""The findings of a recording: its processes' worst ones, of each rule one.

A rule is given the recording of one process, and returns its finding, or None. Shares are of the
wall time: threads that only wait change none. Whether there is a finding depends on its share of
``Recording.run_ns``: a service that waits for requests for most of the time has findings, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from otel_recfn.report.finding import HANG, WAITING, Finding
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules.compilations import compiles
from otel_recfn.report.rules.gpu import starts_the_gpu, waits_for_the_gpu
from otel_recfn.report.rules.hangs import hangs
from otel_recfn.report.rules.loading import has_slow_batches, waits_for_data
from otel_recfn.report.rules.memory import memory_grows
from otel_recfn.report.rules.operators import churns, copies, synchronises, tiny_operators
from otel_recfn.report.rules.outside import runs_outside
from otel_recfn.report.rules.precision import computes_in_double
from otel_recfn.report.rules.recomputation import recomputes
from otel_recfn.report.rules.siblings import is_slow_sibling
from otel_recfn.report.rules.waiting import is_idle

MAX_FINDINGS = 5
"""The maximum number of findings: more at once would hide the important ones."""

Rule = Callable[[Recording], Finding | None]
RULES: tuple[Rule, ...] = (
    hangs,
    waits_for_the_gpu,
    starts_the_gpu,
    waits_for_data,
    has_slow_batches,
    is_idle,
    compiles,
    synchronises,
    copies,
    churns,
    computes_in_double,
    memory_grows,
    tiny_operators,
    recomputes,
    is_slow_sibling,
    runs_outside,
)


def findings(recordings: Sequence[Recording]) -> list[Finding]:
    """The worst finding of each rule in these processes: at most five, the most serious first.

    A hang comes first. A finding that may be the fault of other programs comes after others, and
    one about a thread that waits for work comes last.
    """
    found = [worst for rule in RULES if (worst := _worst_finding(rule, recordings)) is not None]
    return sorted(found, key=_rank)[:MAX_FINDINGS]


def _rank(finding: Finding) -> tuple[bool, bool, bool, bool, float]:
    may_be_others_fault = finding.rule == WAITING and not finding.serious
    is_least = may_be_others_fault or finding.is_waiting
    return finding.rule != HANG, not finding.serious, is_least, finding.is_waiting, -finding.share


def _worst_finding(rule: Rule, recordings: Sequence[Recording]) -> Finding | None:
    """The finding of a rule that has the greatest share. If there are several processes, it says
    in how many of them the rule has a finding.
    """
    found = [
        finding._replace(process=recording.processes[0].label)
        for recording in recordings
        if (finding := rule(recording)) is not None
    ]
    worst = max(found, key=lambda each: each.share, default=None)
    if worst is None or len(recordings) == 1:
        return worst
    return worst._replace(
        text=(
            f"{worst.text} Found in {len(found)} of {len(recordings)} processes; this is"
            f" {worst.process}."
        )
    )
