"""What the tracer of Python calls relies on in CPython beyond its stable interface: a version without it is noticed here."""

from __future__ import annotations

import ctypes
import sys

import pytest

from otel_recfn import _native

OF_312 = ("PyUnstable_Eval_RequestCodeExtraIndex", "PyUnstable_Code_GetExtra", "PyUnstable_Code_SetExtra")
BEFORE_312 = ("_PyEval_RequestCodeExtraIndex", "_PyCode_GetExtra", "_PyCode_SetExtra", "_PyEval_SetProfile")
EVENTS = ("PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND", "CALL", "C_RETURN", "C_RAISE")


@pytest.mark.parametrize("name", OF_312 if sys.version_info >= (3, 12) else BEFORE_312)
def test_this_cpython_has_the_function(name: str) -> None:
    assert hasattr(ctypes.pythonapi, name)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="CPython has it from 3.12 on")
def test_this_cpython_monitors_what_is_taken() -> None:
    assert sorted(_native.monitoring_callbacks(sys.monitoring.MISSING)) == sorted(EVENTS)
    assert all(getattr(sys.monitoring.events, name) for name in EVENTS)
