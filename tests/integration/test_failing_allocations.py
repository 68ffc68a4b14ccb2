"""Allocations fail at random for seconds while a program records: it notices nothing, all is counted, and recording goes on."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from example_counts import SOAK

pytestmark = pytest.mark.one_python

LIBRARY = Path(__file__).with_name("failing_allocations.c")
SECONDS = 3 * SOAK

PROGRAM = """
import ctypes
import json
import sys
import time

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, _native, profile, record_function

library = ctypes.PyDLL(None)
library.begin_by_chance.argtypes, library.begin_by_chance.restype = (ctypes.c_uint,), None
library.begin_by_chance(int(sys.argv[2]))
library.fail_one_in.argtypes, library.fail_one_in.restype = (ctypes.c_uint, ctypes.c_size_t), ctypes.c_ulong
library.spare_below.argtypes, library.spare_below.restype = (ctypes.c_size_t,), None
library.spare_below(4096)  # what this thread runs of Python has the memory that it needs
ONE_IN, SMALLEST = 20, 512  # CPython itself doesn't bear it where smaller ones fail


class Discards(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Discards()))  # a thread of the SDK's would end where it finds no memory
tracer = provider.get_tracer("program")
sink, instrumentor = InMemorySink(10_000_000), OtelRecordFunctionInstrumentor()
instrumentor.instrument(tracer_provider=provider, chrome_trace="trace.json", sinks=[sink])


def work(name):
    with tracer.start_as_current_span("request"), record_function(name):
        for _ in range(20):
            with record_function("inner"):
                pass


work("warm")
assert instrumentor.flush(60)
until, rounds = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < until:
    library.fail_one_in(ONE_IN, SMALLEST)
    for _ in range(20):
        work("amid failures")
    rounds += 1
    if rounds % 10 == 0:
        instrumentor.flush(0.1)
    time.sleep(0.001)  # let the threads that drain and write do so
failed = library.fail_one_in(0, 0)

work("afterwards")
assert instrumentor.flush(60)
with profile() as prof:
    work("profiled")
assert [event.name for event in prof.events()].count("inner") == 20
instrumentor.uninstrument()

counters = instrumentor.counters()
assert counters["waiting"] >= 0, counters
assert "afterwards" in set(sink.rows().names)
with open("trace.json") as file:
    in_file = sum(event["ph"] == "X" and "Event id" in event["args"] for event in json.load(file)["traceEvents"])
lost = sum(counters[f"chrome_trace.dropped.{why}"] for why in ("queue_full", "shutdown", "error"))
lost_in_drain = _native.counters()[2]
assert in_file + lost + lost_in_drain == counters["recorded"], (in_file, lost_in_drain, counters)
assert failed > 10, failed
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("the library that lets allocations fail is for glibc, and has to be compiled")
    path = tmp_path_factory.mktemp("failing") / "failing_allocations.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(LIBRARY)], check=True)
    return path


def test_the_program_goes_on_and_so_does_recording(
    run_program: Callable[..., subprocess.CompletedProcess[str]], library: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown where it fails
    run_program(PROGRAM, str(SECONDS), str(seed), LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
