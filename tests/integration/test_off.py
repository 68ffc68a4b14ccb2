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
def state():
    names = [thread.name for thread in threading.enumerate()]
    return "numpy" in sys.modules, [name for name in names if name.startswith("otel-recfn")]
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
print(state()[1] != [], instrumentor.flush(60))
print(instrumentor.counters()["recorded"], "torch" in sys.modules)
instrumentor.uninstrument()
"""
    assert run_program(AS_AUTOMATIC + program).stdout.split() == ["True", "True", "1", "False"]


def test_what_waits_for_a_first_use_is_called_off(run_program: Callable[..., Any]) -> None:
    program = """
instrumentor.uninstrument()
from otel_recfn import record_function
with record_function("ours"): pass
print(state(), instrumentor.counters())
"""
    assert run_program(AS_AUTOMATIC + program).stdout.strip() == "(False, []) {}"


@pytest.mark.parametrize("disabled", ["true", "TRUE", "false"])
def test_nothing_is_observed_where_the_sdk_is_disabled(
    run_program: Callable[..., Any], disabled: str
) -> None:
    program = """
import os
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function
OtelRecordFunctionInstrumentor().instrument(
    chrome_trace="trace.json", sinks=[sink := InMemorySink()],
    tracer_provider=TracerProvider(), meter_provider=MeterProvider(),
)
with record_function("ours"): pass
print(OtelRecordFunctionInstrumentor().flush(60))
print(OtelRecordFunctionInstrumentor().counters().get("recorded"))
print(len(sink.events()), os.path.exists("trace.json"))
"""
    said = run_program(program, OTEL_SDK_DISABLED=disabled).stdout.split()
    assert said == (
        ["True", "1", "1", "True"] if disabled == "false" else ["False", "None", "0", "False"]
    )


@pytest.mark.torch
def test_operators_are_recorded_once_torch_is_imported(run_program: Callable[..., Any]) -> None:
    program = """
import torch
torch.ones(3).neg()
print(instrumentor.flush(60), instrumentor.counters()["recorded"] > 1)
"""
    assert run_program(AS_AUTOMATIC + program).stdout.strip() == "True True"
