"""Programs whose threads are greenlets: ours are too, and hold up none of the program's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("gevent")

pytestmark = pytest.mark.one_python

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import os, sys, gevent
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(exporter))
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(span_budget=None)  # else ranges that overlap lie in their request
tracer = trace.get_tracer("program")

def serve(number):
    with tracer.start_as_current_span(f"request {number}"):
        with record_function("outer"):
            gevent.sleep(0)
            with record_function("inner"):
                gevent.sleep(0.01)

def paths():
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    def path(span):
        above = [path(spans[span.parent.span_id])] if span.parent else []
        return "/".join([*above, span.name])
    return sorted(map(path, spans.values()))

def work(requests):
    gevent.joinall([gevent.spawn(serve, number) for number in range(requests)], raise_error=True)
    gevent.sleep(0.3)  # drains and idle threads of ours come in between
    assert instrumentor.flush(60)
    below = ("", "/outer", "/outer/inner")
    expected = [f"request {number}{each}" for number in range(requests) for each in below]
    return paths() == sorted(expected)
"""


def test_ranges_of_greenlets_lie_in_their_requests_also_in_a_forked_child(
    run_program: Callable[..., Any],
) -> None:
    program = """
print(work(40), flush=True)
exporter.clear()
child = os.fork()
if child == 0:
    print(work(7), flush=True)
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), work(9))
"""
    ended = run_program(PROGRAM + program)
    assert ended.stdout.split() == ["True", "True", "5", "True"]
