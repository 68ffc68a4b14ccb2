"""A backend that is down or slow costs the end of a program little more than without us.

Times depend on the machine's load. So the tests count the exports that begin at the end of the
program, each of which takes a while; or the export never ends, so that a program that waits for it
doesn't end either, until ``run_program`` kills it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.one_python

PROGRAM = """
import atexit, sys, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

seconds = float(sys.argv[1])
result = SpanExportResult[sys.argv[2]]
timeout = float(sys.argv[3])
requests = int(sys.argv[4])
exporting, first_export_ended, program_is_over = (threading.Event() for _ in range(3))
exports_at_the_end, own = [], []

class Bad(SpanExporter):
    def export(self, spans):
        exporting.set()
        if program_is_over.is_set():
            exports_at_the_end.append(len(spans))
        own.extend(span for span in spans if span.instrumentation_scope.name == "program")
        threading.Event().wait() if seconds == float("inf") else time.sleep(seconds)
        first_export_ended.set()
        return result

def print_counts():
    counters = OtelRecordFunctionInstrumentor().counters()
    print(len(exports_at_the_end), len(own), counters["waiting"], counters["dropped.shutdown"])

atexit.register(print_counts)
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
while not requests and not exporting.wait(0.1):
    work()
if sys.argv[5] == "after":
    first_export_ended.wait()
program_is_over.set()
"""
REQUESTS = 120


class Counts(NamedTuple):
    exports: int
    """The exports that began when the program was over."""
    own: int
    """The spans of the program that were exported."""
    waiting: int
    dropped: int


def counts_at_the_end(run_program: Callable[..., Any], *arguments: object) -> Counts:
    return Counts(*map(int, run_program(PROGRAM, *map(str, arguments)).stdout.split()))


def test_one_that_is_down_is_not_asked_again_and_again_when_the_program_ends(
    run_program: Callable[..., Any],
) -> None:
    counts = counts_at_the_end(run_program, 0.8, "FAILURE", 2.0, REQUESTS, "after")
    assert counts.own == REQUESTS
    assert counts.exports <= 5  # all spans would be more than ten
    assert counts.waiting == 0


def test_one_that_hangs_for_a_while_gets_what_the_program_ended(
    run_program: Callable[..., Any],
) -> None:
    counts = counts_at_the_end(run_program, 1.5, "SUCCESS", 0.5, REQUESTS, "at once")
    assert counts.own == REQUESTS
    assert counts.exports <= 3
    assert counts.waiting == 0


def test_one_that_hangs_for_ever_does_not_keep_a_program_without_spans_of_its_own(
    run_program: Callable[..., Any],
) -> None:
    counts = counts_at_the_end(run_program, "inf", "SUCCESS", 0.5, 0, "at once")
    assert counts.waiting == 0
    assert counts.dropped > 0
