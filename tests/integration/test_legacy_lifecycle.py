"""Runs of the legacy profiler at the edges of a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNNING_AT_EXIT = """
from otel_recfn import record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerState, enable_profiler_legacy
enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
with record_function("step"):
    pass
"""

FORKED_INSIDE = """
import os, warnings
from otel_recfn import record_function
from otel_recfn.legacy import RecordProfile
warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 warns of a fork beside threads
with RecordProfile("steps.trace"):
    with record_function("before"):
        pass
    child = os.fork()
    with record_function("child" if child == 0 else "parent"):
        pass
    if child:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_program_may_end_while_it_is_profiled(run_program: Callable[..., Any]) -> None:
    assert run_program(RUNNING_AT_EXIT).stderr == ""


def test_a_forked_child_leaves_the_trace_to_its_parent(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    assert run_program(FORKED_INSIDE).stderr == ""
    assert [event["name"] for event in json.loads((tmp_path / "steps.trace").read_text())] == [
        "before",
        "parent",
    ]
