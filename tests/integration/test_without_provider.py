"""A program without a tracer provider is told, once, that there are no spans and what to add;
unless its ranges are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.one_python

Run = Callable[..., Any]
NEVER, AT_ONCE = 1e9, 0.0
PROGRAM = """
import logging, os, sys
from opentelemetry import trace
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function, step
from otel_recfn.session import unused_ranges
from helpers.timeouts import PATIENCE_S
import threading

logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout, level=logging.WARNING)
unused_ranges.UNUSED_SECONDS = {seconds}
told = threading.Event()

class Tells(logging.Handler):
    def emit(self, record):
        told.set()

logging.getLogger().addHandler(Tells())  # after the one that prints
instrumentor = OtelRecordFunctionInstrumentor()

def work():
    with record_function("range"):
        pass

"""


def warnings_of(run: Run, program: str, seconds: float = NEVER) -> list[str]:
    """The warnings."""
    lines = run(PROGRAM.format(seconds=seconds) + program).stdout.splitlines()
    return [line for line in lines if line.startswith("WARNING")]


def test_at_the_end(run_program: Run) -> None:
    (told,) = warnings_of(run_program, "instrumentor.instrument()\nwork()")
    assert "no tracer provider" in told


def test_as_soon_as_it_has_gone_on_for_seconds(run_program: Run) -> None:
    program = (
        "instrumentor.instrument()\nwork()\nassert told.wait(PATIENCE_S)\nprint('before the"
        " end')\nwork()"
    )
    run = run_program(PROGRAM.format(seconds=AT_ONCE) + program)
    assert re.search(r"WARNING .*no tracer provider(?s:.)*before the end", run.stdout)
    assert run.stdout.count("WARNING") == 1


def test_the_lines_that_it_says_to_add_make_spans(run_program: Run) -> None:
    program = """
import io, re
heard = io.StringIO()
logging.getLogger("otel_recfn").addHandler(logging.StreamHandler(heard))
instrumentor.instrument()
work()
instrumentor.uninstrument()
lines = [line.strip() for line in heard.getvalue().splitlines()[1:3]]
for line in lines:
    code, _, imports = line.partition("  # ")
    exec(imports)
    exec(code)
assert len(lines) == 2, lines

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
# Nobody listens at the endpoint that it would export to.
OTLPSpanExporter.export = lambda _self, spans: exporter.export(spans)
instrumentor.instrument()
work()
instrumentor.uninstrument()
assert "range" in [span.name for span in exporter.get_finished_spans()]
"""
    assert len(warnings_of(run_program, program)) == 1


PROVIDER = "from opentelemetry.sdk.trace import TracerProvider\n"
METERS = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
meters = MeterProvider([InMemoryMetricReader()])
"""


@pytest.mark.parametrize("seconds", [NEVER, AT_ONCE])
@pytest.mark.parametrize(
    "program",
    [
        "instrumentor.instrument(chrome_trace='trace.json')\nwork()",
        "instrumentor.instrument(sinks=[InMemorySink()])\nwork()",
        "instrumentor.instrument()\nwith profile():\n    work()",
        "with profile():\n    instrumentor.instrument()\n    work()",
        METERS + "instrumentor.instrument(meter_provider=meters)\nwork()",
        PROVIDER + "instrumentor.instrument(tracer_provider=TracerProvider())\nwork()",
        PROVIDER + "trace.set_tracer_provider(TracerProvider())\ninstrumentor.instrument()\nwork()",
        "instrumentor.instrument(tracer_provider=trace.NoOpTracerProvider())\nwork()",
        "trace.set_tracer_provider(trace.NoOpTracerProvider())\ninstrumentor.instrument()\nwork()",
        "instrumentor.instrument()",
        "instrumentor.instrument(enabled=False)\nwork()",
        "work()",
    ],
)
def test_nothing_where_it_would_be_of_no_use(
    run_program: Run, program: str, seconds: float
) -> None:
    assert (
        warnings_of(run_program, program + "\ninstrumentor.flush()\ninstrumentor.flush()", seconds)
        == []
    )


FORK = """
def forked(work):
    if (child := os.fork()) == 0:
        instrumentor_work(work)
    assert os.waitpid(child, 0)[1] == 0

def instrumentor_work(work):
    work()
    instrumentor.flush()
    instrumentor.uninstrument()
    sys.stdout.flush()
    os._exit(0)
"""


def test_a_forked_child_leaves_it_to_a_parent_that_has_ranges(run_program: Run) -> None:
    program = (
        FORK + "instrumentor.instrument()\nwork()\ninstrumentor.flush()\nforked(work)\nforked(work)"
    )
    assert len(warnings_of(run_program, program)) == 1


def test_a_forked_child_tells_it_where_only_the_child_works(run_program: Run) -> None:
    """As the workers of a server that forks."""
    assert len(warnings_of(run_program, FORK + "instrumentor.instrument()\nforked(work)")) == 1
