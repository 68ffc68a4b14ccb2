"""A provider that is set just before the end gets its spans before it is shut down, in every
kind of process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import multiprocessing, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

def work():
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(formatter=lambda span: span.name + chr(10))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with record_function("range"):
        pass

if __name__ == "__main__":
    OtelRecordFunctionInstrumentor().instrument()
    if sys.argv[1] == "program":
        work()
    else:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("process", ["program", "fork", "spawn", "forkserver"])
def test_what_it_gets(run_program: Callable[..., Any], process: str) -> None:
    done = run_program(PROGRAM, process)
    assert (sorted(done.stdout.split()), done.stderr) == (["MainThread", "range"], "")


def test_threading_has_what_we_need() -> None:
    assert callable(threading._register_atexit)  # type: ignore[attr-defined]
