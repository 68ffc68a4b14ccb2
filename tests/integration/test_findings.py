"""What a report says first of twelve programs with a fault each, and that it leaves healthy ones alone, also where the
machine has other work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile
from otel_recfn.cli import main
from otel_recfn.report.rules import Finding

pytestmark = [pytest.mark.torch, pytest.mark.one_python]
torch = pytest.importorskip("torch")

from healthy_programs import HEALTHY  # noqa: E402
from planted_faults import PLANTED  # noqa: E402

Program = Callable[[], object]


def found_in(program: Program, **keywords: bool) -> list[Finding]:
    with profile(**keywords) as prof:
        program()
    return prof.findings()


def planted(rule: str) -> Program:
    return next(program for each, _, program in PLANTED if each == rule)


@pytest.mark.parametrize(
    ("rule", "name", "program"), PLANTED, ids=[program.__name__ for *_, program in PLANTED]
)
def test_a_planted_fault_is_what_is_found_first(rule: str, name: str, program: Program) -> None:
    first, *_ = found_in(program, profile_memory=rule == "memory")
    assert first.rule == rule
    assert name in " > ".join(first.anchor)
    assert 0 < first.share <= 1


def test_who_waits_for_the_programs_own_threads_has_a_serious_fault_and_who_sleeps_may_have_none() -> (
    None
):
    """Another program may have had the core."""
    assert [found_in(program)[0].serious for rule, _, program in PLANTED if rule == "cpu"] == [
        False,
        True,
    ]


def test_the_line_of_python_is_told_where_stacks_are_recorded() -> None:
    first, *_ = found_in(planted("sync"), with_stack=True)
    assert "planted_faults.py(" in first.code


@pytest.mark.parametrize(
    "record", [profile, torch.profiler.profile], ids=["ours", "torch.profiler"]
)
@pytest.mark.parametrize("rule", ["data", "compile", "sync", "copy", "tiny", "memory"])
def test_the_same_is_found_in_traces(rule: str, record: Callable[..., Any], tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "report.json"
    with record(profile_memory=rule == "memory") as recorded:
        planted(rule)()
    recorded.export_chrome_trace(str(trace))
    assert main(["report", str(trace), "-o", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["findings"][0]["rule"] == rule


@pytest.mark.parametrize("program", HEALTHY, ids=[program.__name__ for program in HEALTHY])
def test_a_healthy_program_has_nothing_serious(program: Program) -> None:
    program()  # first calls import, compile and make threads
    assert [finding for finding in found_in(program, profile_memory=True) if finding.serious] == []
