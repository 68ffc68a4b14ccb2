"""Without the native part: ranges do nothing, and whoever wants to record is told in one error how to get it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

BLOCKED = """
import sys
sys.modules["otel_recfn._native"] = None
"""
WAY_OUT = "pip install --force-reinstall --no-cache-dir"


def test_ranges_and_steps_do_nothing(run_program: Run) -> None:
    done = run_program(
        BLOCKED
        + """
import asyncio
from otel_recfn import record_function, step
for kind in (record_function, step):
    with kind("with"):
        pass
    @kind("decorated")
    def decorated(x):
        return x + 1
    assert decorated(1) == 2
    async def work():
        async with kind("async with"):
            return 3
    assert asyncio.run(work()) == 3
    try:
        kind(decorated)
    except TypeError:
        pass
    else:
        raise SystemExit("it takes a function for a name")
with step(), step("train", 3), record_function("load", "args"):
    pass
"""
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    "what",
    [
        "otel_recfn.OtelRecordFunctionInstrumentor().instrument()",
        "from otel_recfn import profile\nprofile(record_shapes=True)",
        "otel_recfn.RecordFunction()",
        "otel_recfn.add_global_callback(None)",
        "from otel_recfn.legacy import enable_profiler_legacy",
        "import otel_recfn.tracing.wrappers",
        "from otel_recfn import _native",
    ],
)
def test_who_wants_to_record_is_told(run_program: Run, what: str) -> None:
    program = f"import otel_recfn\nfrom otel_recfn.errors import RecorderUnavailable\ntry:\n    exec({what!r})\n"
    done = run_program(f"{BLOCKED}{program}except RecorderUnavailable as error:\n    print(error)")
    assert "nothing is recorded" in done.stdout
    assert WAY_OUT in done.stdout


def test_automatic_instrumentation_logs_one_line_and_goes_on(run_program: Run) -> None:
    done = run_program(
        BLOCKED
        + """
import logging
logging.basicConfig()
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
print("went on")
"""
    )
    assert done.stdout == "went on\n"
    [line] = done.stderr.splitlines()
    assert "otel-recfn is not instrumenting" in line
    assert WAY_OUT in line


def test_the_doctor_says_it(run_program: Run) -> None:
    done = run_program(BLOCKED + 'from otel_recfn.cli import main\nassert main(["doctor"]) == 1')
    assert WAY_OUT in done.stdout
    assert "could not be examined" not in done.stdout
