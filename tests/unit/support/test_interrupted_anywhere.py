"""A signal handler may interrupt us at any line, use us, and raise: one line of ours after the other is tried."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S
from soak import SOAK

pytestmark = pytest.mark.one_python

PROGRAM = Path(__file__).parent.parent.parent / "interrupted_anywhere.py"
REINSTRUMENTED = PROGRAM.with_name("reinstrumented_anywhere.py")
CASES = [
    *itertools.product(["native"], ["profile", "legacy"], ["profile", "legacy", "look", "left running", "raise"]),
    *itertools.product(["python"], ["profile"], ["profile", "raise"]),
]
EVERY = len([case for case in CASES if case[0] == "native"])
"""So many lines apart, and each of these cases begins at another one; all are tried with ``OTEL_RECFN_SOAK``."""
STANDING_PROFILE_DROPS = "otel-recfn lost event_store.dropped="  # it keeps ten events


@pytest.mark.parametrize(("recorder", "interrupted", "handler"), CASES)
def test_a_signal_handler_interrupts_any_line(recorder: str, interrupted: str, handler: str) -> None:
    if recorder == "native":
        pytest.importorskip("otel_recfn._native")
    every = 1 if SOAK > 1 else EVERY
    first = 1 + CASES.index((recorder, interrupted, handler)) % every
    command = [sys.executable, str(PROGRAM), recorder, interrupted, handler, str(first), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if not (handler == "look" and STANDING_PROFILE_DROPS in line)]
    may_lose = handler == "raise" or recorder == "python"
    assert may_lose or not told


@pytest.mark.parametrize("handler", ["reinstrument", "uninstrument", "flush", "profile", "left running"])
def test_every_span_has_its_parent_whatever_a_signal_handler_switches(handler: str) -> None:
    pytest.importorskip("otel_recfn._native")
    every = 1 if SOAK > 1 else 149
    command = [sys.executable, str(REINSTRUMENTED), "native", handler, str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * SOAK, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
