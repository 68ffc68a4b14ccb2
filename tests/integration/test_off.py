"""Off is off: nothing is observed, nor loaded, where nothing could come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.one_python

AS_AUTOMATIC = """
import sys, threading
from otel_recfn.instrumentor import OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(skip_dep_check=True)
def state(): return "numpy" in sys.modules, [each.name for each in threading.enumerate() if each.name.startswith("otel-recfn")]
"""


def test_a_program_that_records_nothing_pays_neither_numpy_nor_threads(
    run_program: Callable[..., Any],
) -> None:
    said = run_program(
        AS_AUTOMATIC + "import json\nprint(state(), instrumentor.is_instrumented_by_opentelemetry)"
    ).stdout
    assert said.split("\n")[0] == "(False, []) True"


def test_ranges_are_recorded_from_their_first_use_on_also_without_torch(
    run_program: Callable[..., Any],
) -> None:
    program = """
from otel_recfn import record_function
with record_function("ours"): pass
print(state()[1] != [], instrumentor.flush(60), instrumentor.counters()["recorded"], "torch" in sys.modules)
instrumentor.uninstrument()
"""
    assert run_program(AS_AUTOMATIC + program).stdout.strip() == "True True 1 False"


def test_what_waits_for_a_first_use_is_called_off(run_program: Callable[..., Any]) -> None:
    program = """
instrumentor.uninstrument()
from otel_recfn import record_function
with record_function("ours"): pass
print(state(), instrumentor.counters())
"""
    assert run_program(AS_AUTOMATIC + program).stdout.strip() == "(False, []) {}"


@pytest.mark.parametrize(
    ("disabled", "file", "records"), [("true", 0, 0), ("TRUE", 1, 1), ("false", 0, 1)]
)
def test_nothing_is_observed_where_the_sdk_is_disabled_and_there_is_no_file(
    run_program: Callable[..., Any], disabled: str, file: int, records: int
) -> None:
    program = """
import sys
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json" if sys.argv[1] == "1" else None)
with record_function("ours"): pass
OtelRecordFunctionInstrumentor().flush(60)
print(OtelRecordFunctionInstrumentor().counters().get("recorded"))
"""
    said = run_program(program, str(file), OTEL_SDK_DISABLED=disabled).stdout.strip()
    assert said == ("1" if records else "None")


@pytest.mark.torch
def test_operators_are_recorded_once_torch_is_imported(run_program: Callable[..., Any]) -> None:
    program = """
import torch
torch.ones(3).neg()
print(instrumentor.flush(60), instrumentor.counters()["recorded"] > 1)
"""
    assert run_program(AS_AUTOMATIC + program).stdout.strip() == "True True"
