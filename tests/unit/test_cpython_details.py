"""What the tracer of Python calls relies on in CPython beyond its stable interface: a version
without it is noticed here.
"""

from __future__ import annotations

import ctypes
import sys

import pytest

from otel_recfn import _native

EVENTS = (
    "PY_START",
    "PY_RESUME",
    "PY_THROW",
    "PY_RETURN",
    "PY_YIELD",
    "PY_UNWIND",
    "CALL",
    "C_RETURN",
    "C_RAISE",
)


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="CPython needs it before 3.12")
def test_this_cpython_has_the_function() -> None:
    assert hasattr(ctypes.pythonapi, "_PyEval_SetProfile")


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="CPython has it from 3.12 on")
def test_this_cpython_monitors_what_is_taken() -> None:
    assert sorted(_native.monitoring_callbacks(sys.monitoring.MISSING)) == sorted(EVENTS)
    assert all(getattr(sys.monitoring.events, name) for name in EVENTS)
