"""What `import otel_recfn` loads. How long it takes is for benchmarks/bench_import.py."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.instrumentor import USED_WITH

HEAVY = ("torch", "numpy", "grpc")


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after the statement."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout
    return set(json.loads(output.splitlines()[-1]))


IMPORTS = (
    "import otel_recfn",
    "from otel_recfn import RecordScope",
    "import otel_recfn.observing, otel_recfn.tracing.wrappers",
)


@pytest.mark.parametrize("statement", IMPORTS)
def test_importing_the_package_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & set(HEAVY)


def test_the_instrumentor_loads_no_torch() -> None:
    assert "torch" not in loaded_by(
        "from otel_recfn import OtelRecordFunctionInstrumentor, record_function"
    )


@pytest.mark.parametrize("module", [*USED_WITH[1:], "otel_recfn.observing"])
def test_recording_can_start_as_soon_as_what_needs_it_is_imported(module: str) -> None:
    """Whatever was imported before: no module that a start needs is half imported then."""
    program = f"""
from otel_recfn.instrumentor import USED_WITH
from otel_recfn.pytorch.late_import import call_at_first_import
def start():
    from otel_recfn.session.session import process_session
    print(process_session())
call_at_first_import(USED_WITH, start, "nothing is recorded")
import {module}
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout[:1], done.stderr) == ("<", "")


def test_the_sdk_of_metrics_is_left_to_whoever_has_a_meter_provider() -> None:
    program = (
        "from otel_recfn import OtelRecordFunctionInstrumentor as I,"
        " record_function\nI().instrument()\n"
    )
    program += "with record_function('range'): pass\nassert I().flush(60)\nI().uninstrument()"
    assert not {name for name in loaded_by(program) if name.startswith("opentelemetry.sdk.metrics")}
