"""In a subinterpreter: recording is refused in words, ranges record nothing, and the main
interpreter records on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import faulthandler, sys
faulthandler.dump_traceback_later(60, exit=True)
kind, main_records, code = sys.argv[1:]
alive = []
if main_records == "yes":
    from opentelemetry import trace
    from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function
    sink, instrumentor = InMemorySink(), OtelRecordFunctionInstrumentor()
    instrumentor.instrument(sinks=[sink])
    with record_function("before"):
        pass


def run(code):
    if kind == "legacy":
        import _testcapi
        return _testcapi.run_in_subinterp(code)
    try:
        import _interpreters as interpreters
        made = interpreters.create(kind)
    except ImportError:
        import _xxsubinterpreters as interpreters
        made = interpreters.create(isolated=kind == "isolated")
    interpreters.run_string(made, code)
    alive.append(lambda: interpreters.destroy(made))


run(code)
if main_records == "yes":
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, False))
    with trace.use_span(span), record_function("after"):
        pass
    assert instrumentor.flush(300)
    print(sorted((event.name, event.context.trace_id) for event in sink.events()))
    instrumentor.uninstrument()
[end() for end in alive]
"""
RANGES = """
from otel_recfn import record_function
with record_function("inside"):
    pass
decorated = record_function("decorated inside")(lambda: 1)
print("ran", decorated(), flush=True)
"""
REFUSED = """
from otel_recfn import OtelRecordFunctionInstrumentor, profile
for record in (OtelRecordFunctionInstrumentor().instrument, profile):
    try:
        record()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
print("automatic instrumentation goes on with the next", flush=True)
"""
KINDS = ("legacy", "isolated") if sys.version_info >= (3, 12) else ("legacy", "isolated", "shared")
WRAPT_BREAKS_IT = sys.version_info[:2] == (3, 12)
"""CPython 3.12 aborts when an isolated interpreter ends that imported asyncio, as wrapt and so
OpenTelemetry does.
"""


@pytest.mark.parametrize("main_records", ["yes", "no"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [RANGES, REFUSED], ids=["ranges", "recording"])
def test_in_a_subinterpreter(
    run_program: Callable[..., Any], kind: str, main_records: str, code: str
) -> None:
    if kind == "legacy":
        pytest.importorskip("_testcapi")
    if WRAPT_BREAKS_IT and kind == "isolated" and code == REFUSED:
        pytest.skip("wrapt breaks isolated interpreters here")
    said = run_program(PROGRAM, kind, main_records, code).stdout.splitlines()
    if main_records == "yes":
        assert said.pop() == "[('after', 1), ('before', 0)]"
    if code == RANGES:
        assert said == ["ran 1"]
    else:
        *refused, last = said
        refusal = "RecorderUnavailable otel-recfn records in the main interpreter only"
        assert [line.startswith(refusal) for line in refused] == [True, True]
        assert last == "automatic instrumentation goes on with the next"
