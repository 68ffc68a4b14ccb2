"""A signal handler may interrupt us at any line, use us, and raise: one line of ours after the other is tried."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patience import PATIENCE_S
from prepared_programs import PreparedPrograms
from soak import SOAK

pytestmark = pytest.mark.one_python

PROGRAM = Path(__file__).parent.parent.parent / "interrupted_anywhere.py"
REINSTRUMENTED = PROGRAM.with_name("reinstrumented_anywhere.py")
CASES = [*itertools.product(["profile", "legacy"], ["profile", "legacy", "look", "left running", "raise"])]
EVERY = len(CASES)
"""So many lines apart, and each of these cases begins at another one; all are tried with ``OTEL_RECFN_SOAK``."""
STANDING_PROFILE_DROPS = "otel-recfn lost event_store.dropped="  # it keeps ten events
IMPORTED = ("otel_recfn.profiling", "otel_recfn.legacy", "opentelemetry.sdk.trace.export")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def prepared() -> Iterator[PreparedPrograms]:
    """Has imported what the programs do, which takes as long as trying fifty lines."""
    programs = PreparedPrograms(*IMPORTED)
    yield programs
    programs.close()


@pytest.fixture
def run(prepared: PreparedPrograms, tmp_path: Path) -> Run:
    """Runs a program of the tests' folder."""

    def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / program.name
        script.write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(program.parent)}
        return prepared.run(script, arguments, environment, PATIENCE_S * SOAK)

    return run


@pytest.mark.parametrize(("interrupted", "handler"), CASES)
def test_a_signal_handler_interrupts_any_line(run: Run, interrupted: str, handler: str) -> None:
    every = 1 if SOAK > 1 else EVERY
    first = 1 + CASES.index((interrupted, handler)) % every
    done = run(PROGRAM, interrupted, handler, str(first), str(every))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if not (handler == "look" and STANDING_PROFILE_DROPS in line)]
    assert handler == "raise" or not told


@pytest.mark.parametrize("handler", ["reinstrument", "uninstrument", "flush", "profile", "left running"])
def test_every_span_has_its_parent_whatever_a_signal_handler_switches(run: Run, handler: str) -> None:
    every = 1 if SOAK > 1 else 149
    done = run(REINSTRUMENTED, handler, str(every))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
