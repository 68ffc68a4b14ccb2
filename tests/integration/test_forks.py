"""Forks at any moment: no child hangs, and each child's spans arrive once.

``tests/soak/fork_soak.py`` makes thousands, in each start method.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.example_counts import SOAK
from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
SCRIPT = Path(__file__).parents[1] / "soak" / "fork_soak.py"
FORKS = 40 * SOAK

EXPORT = """
import os, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1])))
trace.set_tracer_provider(provider)
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(roots_per_second=None)
tracer = trace.get_tracer("program")

def work(name):
    for _ in range(20):
        with tracer.start_as_current_span("span"), record_function(name):
            time.sleep(0.001)

work("parent")
pids = []
for number in range(2):
    pids.append(os.fork())
    if pids[-1] == 0:
        work(f"child {number}")
        instrumentor.flush(300)
        instrumentor.uninstrument()
        provider.shutdown()
        os._exit(0)
work("parent")
for pid in pids:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_what_parent_and_children_record_is_exported_once(run_program: Callable[..., Any]) -> None:
    with OtlpServer("http") as server:
        run_program(EXPORT, server.endpoint)
        names = [span.name for span in server.spans if span.name != "span"]
        ids = [span.span_id for span in server.spans]
    assert {name: names.count(name) for name in names} == {
        "parent": 40,
        "child 0": 20,
        "child 1": 20,
    }
    assert len(ids) == len(set(ids))


INSIDE = """
import os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(tracer_provider=provider, span_budget=None)
with provider.get_tracer("program").start_as_current_span("span") as span, record_function("outer"):
    child = os.fork()
    if child == 0:
        with record_function("in child"):
            pass
        instrumentor.flush(300)
        [made] = exporter.get_finished_spans()
        os._exit(made.parent.span_id != span.get_span_context().span_id)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_is_in_the_span_and_not_in_the_range_that_its_parent_has_open(
    run_program: Callable[..., Any],
) -> None:
    assert run_program(INSIDE).stdout.split() == ["0"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("method", "forks"), [("os.fork", FORKS), ("fork", FORKS // 2), ("forkserver", 2), ("spawn", 1)]
)
def test_forks_at_random_moments_of_four_busy_threads(method: str, forks: int) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--method",
        method,
        "--forks",
        str(forks),
        "--child-seconds",
        str(PATIENCE_S),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
