"""Wrong settings are named with what is allowed, and end nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.model.errors import SettingError


@pytest.mark.parametrize(
    ("keywords", "named", "allowed"),
    [
        ({"scopes": {99}}, "scopes", "FUNCTION"),
        ({"scopes": "FUNCTION"}, "scopes", "BACKWARD_FUNCTION"),
        ({"chrome_trace": "trace.txt"}, "chrome_trace", ".json.gz"),
        ({"chrome_trace": "/no/such/folder/trace.json"}, "chrome_trace", "/no/such/folder"),
        ({"roots_per_second": -1}, "roots_per_second", "zero or more"),
        ({"record_shapes": 1}, "record_shapes", "True or False"),
        ({"modules": "yes"}, "modules", "True or False"),
        ({"buffer_bytes": 1}, "buffer_bytes", "from 4096"),
        ({"enabled": None}, "enabled", "True or False"),
        ({"scope": None}, "scope", "tracer_provider, meter_provider"),
    ],
)
def test_wrong_settings(keywords: dict[str, Any], named: str, allowed: str) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    with pytest.raises(SettingError) as raised:
        instrumentor.instrument(**keywords)
    assert named in str(raised.value)
    assert allowed in str(raised.value)
    assert not instrumentor.is_instrumented_by_opentelemetry


def test_wrong_settings_of_the_environment(run_program: Callable[..., Any]) -> None:
    program = """
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.model.errors import SettingError
try:
    OtelRecordFunctionInstrumentor().instrument()
except SettingError as error:
    print(error)
"""
    said = run_program(program, OTEL_RECFN_MODULES="perhaps").stdout
    assert "OTEL_RECFN_MODULES='perhaps'" in said
    assert "true or false" in said


def test_a_wrong_setting_ends_no_other_instrumentation(run_program: Callable[..., Any]) -> None:
    """As opentelemetry-instrument calls us."""
    program = """
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
"""
    assert "OTEL_RECFN_MODULES='perhaps'" in run_program(program, OTEL_RECFN_MODULES="perhaps").stderr
