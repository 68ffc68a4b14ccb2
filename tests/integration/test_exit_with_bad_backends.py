"""A backend that is down or slow costs the end of a program little more than without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.one_python

PROGRAM = """
import atexit, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

seconds = float(sys.argv[1])
result = SpanExportResult[sys.argv[2]]
timeout = float(sys.argv[3])
requests = int(sys.argv[4])
began, ended, own = [], [], []

class Bad(SpanExporter):
    def export(self, spans):
        began.append(time.monotonic())
        own.extend(span for span in spans if span.instrumentation_scope.name == "program")
        time.sleep(seconds)
        ended.append(time.monotonic())
        return result

def tell():
    counters = OtelRecordFunctionInstrumentor().counters()
    print(time.monotonic() - end, sum(at > end for at in began), len(own), counters["waiting"],
          counters["dropped.shutdown"])

atexit.register(tell)
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(Bad(), schedule_delay_millis=100))
atexit.register(trace.get_tracer_provider().shutdown)
OtelRecordFunctionInstrumentor().instrument(exit_timeout_s=timeout, ordinary_span_budget=100)
tracer = trace.get_tracer("program")

def work():
    for number in range(50):
        with record_function(f"range {number}"):
            pass

for _ in range(requests):
    with tracer.start_as_current_span("request"):
        work()
    time.sleep(0.005)
while not requests and not began:
    work()
    time.sleep(0.1)
while sys.argv[5] == "after" and not ended:
    time.sleep(0.01)
end = time.monotonic()
"""
REQUESTS = 120


class Ended(NamedTuple):
    seconds: float
    """The time that the end took."""
    exports: int
    """The exports that began in that time."""
    own: int
    """The spans of the program that were exported."""
    waiting: int
    dropped: int


def ended(run_program: Callable[..., Any], *arguments: object) -> Ended:
    seconds, *counts = run_program(PROGRAM, *map(str, arguments)).stdout.split()
    return Ended(float(seconds), *map(int, counts))


def test_one_that_is_down_is_not_asked_again_and_again_when_the_program_ends(
    run_program: Callable[..., Any],
) -> None:
    end = ended(run_program, 0.8, "FAILURE", 2.0, REQUESTS, "after")
    assert end.own == REQUESTS
    assert end.seconds < 6.0
    assert end.waiting == 0


def test_one_that_hangs_for_a_while_gets_what_the_program_ended(
    run_program: Callable[..., Any],
) -> None:
    end = ended(run_program, 1.5, "SUCCESS", 0.5, REQUESTS, "at once")
    assert end.own == REQUESTS
    assert end.exports <= 3
    assert end.seconds < 7.0
    assert end.waiting == 0


def test_one_that_hangs_costs_a_program_without_spans_of_its_own_what_was_said(
    run_program: Callable[..., Any],
) -> None:
    end = ended(run_program, 60.0, "SUCCESS", 0.5, 0, "at once")
    assert end.seconds < 5.0
    assert end.waiting == 0
    assert end.dropped > 0
