"""A report finds the fault of each of these programs, and leaves healthy ones alone.

The times are real ones, so what is asserted is what holds on a busy machine, too. What comes first,
and from which share of the time on something is told or serious, is tested on recordings with set
times (``unit/report/test_rules.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile
from otel_recfn.cli import main
from otel_recfn.report import finding, findings
from otel_recfn.report.finding import Finding
from otel_recfn.report.rules import compilations

pytestmark = [pytest.mark.torch, pytest.mark.one_python]
torch = pytest.importorskip("torch")

from helpers.healthy_programs import HEALTHY  # noqa: E402
from helpers.planted_faults import (  # noqa: E402
    PLANTED,
    function_checkpoints,
    waiting_in_a_module,
)

Program = Callable[[], object]


def found_in(program: Program, **keywords: bool) -> dict[str, Finding]:
    """The findings by their rules."""
    with profile(**keywords) as prof:
        program()
    return {finding.rule: finding for finding in prof.findings()}


RECORDING = {
    "memory": {"profile_memory": True},
    "growth": {"profile_memory": True},
    "double": {"record_shapes": True},
}
"""What has to be recorded for a rule, if that isn't always."""


def planted(rule: str) -> Program:
    return next(program for each, _, program in PLANTED if each == rule)


@pytest.fixture(autouse=True)
def any_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule tells what it finds, whatever share of the time that took.

    Where another program has the cores, time passes in ranges that have no fault, so that a fault
    has a smaller share than MIN_SHARE.
    """
    for module in (finding, compilations):
        monkeypatch.setattr(module, "MIN_SHARE", 1e-9)
    monkeypatch.setattr(findings, "MAX_FINDINGS", len(findings.RULES))


@pytest.mark.parametrize(
    ("rule", "name", "program"), PLANTED, ids=[program.__name__ for *_, program in PLANTED]
)
def test_a_planted_fault_is_found(rule: str, name: str, program: Program) -> None:
    found = found_in(program, **RECORDING.get(rule, {}))[rule]
    assert name in f"{found.title} {found.text} {' > '.join(found.anchor)}"
    assert 0 <= found.share <= 1


def test_sleeping_is_not_serious() -> None:
    """While a program sleeps, another one may have had the core."""
    assert not found_in(waiting_in_a_module)["cpu"].serious


def test_the_line_of_python_is_told_where_stacks_are_recorded() -> None:
    assert "planted_faults.py(" in found_in(planted("sync"), with_stack=True)["sync"].code


@pytest.mark.parametrize(
    "record", [profile, torch.profiler.profile], ids=["ours", "torch.profiler"]
)
@pytest.mark.parametrize(
    ("rule", "program"),
    [
        *[
            (rule, planted(rule))
            for rule in ["data", "compile", "sync", "copy", "tiny", "memory", "batch", "growth"]
        ],
        ("recompute", function_checkpoints),
    ],
)
def test_the_same_is_found_in_traces(
    rule: str, program: Program, record: Callable[..., Any], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    out = tmp_path / "report.json"
    with record(**RECORDING.get(rule, {})) as recorded:
        program()
    recorded.export_chrome_trace(str(trace))
    assert main(["report", str(trace), "-o", str(out)]) == 0
    findings = json.loads(out.read_text(encoding="utf-8"))["findings"]
    assert rule in {finding["rule"] for finding in findings}


@pytest.mark.parametrize("program", HEALTHY, ids=[program.__name__ for program in HEALTHY])
def test_a_healthy_program_has_nothing_serious(program: Program) -> None:
    program()  # first calls import, compile and make threads
    findings = found_in(program, profile_memory=True, record_shapes=True).values()
    assert [finding for finding in findings if finding.serious] == []
