"""A backend that is down or slow costs the end of a program little more than without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.one_python

PROGRAM = """
import atexit, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

seconds, result, timeout = float(sys.argv[1]), SpanExportResult[sys.argv[2]], float(sys.argv[3])
began, ours = [], 0

class Bad(SpanExporter):
    def export(self, spans):
        global ours
        began.append(time.monotonic())
        ours += sum(span.instrumentation_scope.name == "otel_recfn" for span in spans)
        time.sleep(seconds)
        return result

def tell():
    handed = sum(OtelRecordFunctionInstrumentor().counters()[name] for name in ("exported", "failed", "dropped.shutdown"))
    print(time.monotonic() - end, sum(at > end for at in began), ours, handed)

atexit.register(tell)
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(Bad()))
atexit.register(trace.get_tracer_provider().shutdown)
OtelRecordFunctionInstrumentor().instrument(exit_timeout_s=timeout, ordinary_span_budget=100)
tracer = trace.get_tracer("program")
for _ in range(120):
    with tracer.start_as_current_span("request"):
        for number in range(50):
            with record_function(f"range {number}"):
                pass
    time.sleep(0.005)
while sys.argv[4] == "after" and not OtelRecordFunctionInstrumentor().counters()["failed"]:
    time.sleep(0.01)
end = time.monotonic()
"""


def ended(run_program: Callable[..., Any], *arguments: object) -> tuple[float, int, int, int]:
    seconds, exports, ours, spans = run_program(PROGRAM, *map(str, arguments)).stdout.split()
    return float(seconds), int(exports), int(ours), int(spans)


def test_one_that_is_down_is_not_asked_again_and_again_when_the_program_ends(
    run_program: Callable[..., Any],
) -> None:
    """By then it is known: the first export has failed, and nothing is waited for."""
    seconds, exports, _, _ = ended(run_program, 0.8, "FAILURE", 2.0, "after")
    assert exports <= 2  # the program's own, and what was queued with it
    assert seconds < 4.0


def test_one_that_hangs_is_waited_for_no_longer_than_was_said(
    run_program: Callable[..., Any],
) -> None:
    seconds, exports, _, _ = ended(run_program, 1.5, "SUCCESS", 0.5, "at once")
    assert exports <= 2
    assert seconds < 4.0
