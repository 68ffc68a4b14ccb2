"""Forks at any moment: no child hangs, each child's spans arrive once, and a fork does not wait long.

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
from otlp_server import OtlpServer

from patience import PATIENCE_S
from thoroughness import SOAK

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
SCRIPT = Path(__file__).parents[1] / "soak" / "fork_soak.py"
FORKS = 40 * SOAK

SPANS = """
import os, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Exporter(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Exporter()))
trace.set_tracer_provider(provider)
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument()

def work(name):
    with trace.get_tracer("program").start_as_current_span("span"), record_function(name):
        pass

def ended_well(pids):
    until, codes = time.monotonic() + 300, {}
    while len(codes) < len(pids) and time.monotonic() < until:
        for pid in pids:
            if pid not in codes and (status := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(status[1])
        time.sleep(0.01)
    for pid in pids:
        if pid not in codes:
            os.kill(pid, 9), os.waitpid(pid, 0)
    return [codes.get(pid, "hung") for pid in pids] == [0] * len(pids)
"""

FIRST_BATCH = (
    SPANS
    + """
work("first")
began, pids = time.monotonic(), []
while time.monotonic() < began + 0.15:
    pids.append(os.fork())
    if pids[-1] == 0:
        import numpy
        numpy.unique([1, 2])  # imports numpy.ma, as what our threads called did
        os._exit(0)
    time.sleep(0.001)
assert ended_well(pids), "children hang"
"""
)


HANGING_EXPORTER = (
    SPANS.replace("return SpanExportResult.SUCCESS", "return self.send()")
    .replace("(BatchSpanProcessor(", "(Flushed(")
    .replace(
        "provider = ",
        """class Flushed(BatchSpanProcessor):
    def force_flush(self, timeout_millis=30_000):
        flushing.set()
        return super().force_flush(timeout_millis)

provider = """,
    )
    .replace(
        "    def export",
        """    def send(self):
        if os.getpid() == parent:
            hanging.set()
            time.sleep(3600)
        exported.append(1)
        return SpanExportResult.SUCCESS

    def export""",
    )
    + """
work("first")
from otel_recfn.support import forks
assert hanging.wait(300)
threading.Thread(target=instrumentor.flush, args=(3600,), daemon=True).start()
assert flushing.wait(300)
waited, pids = [], []
for seconds in (1.0, 100.0, 100.0):  # what a fork may wait for the exporter
    forks.FORK_WAIT_SECONDS = seconds
    began = time.monotonic()
    pids.append(os.fork())
    if pids[-1] == 0:
        work("child's")
        os._exit(0 if instrumentor.flush(300) and exported else 1)
    waited.append(time.monotonic() - began)
assert ended_well(pids)
assert waited[0] >= 1 and max(waited) < 100, waited  # it waits once
os._exit(0)  # without waiting for the exporter
"""
)


COMPILING = """
import os, sys, threading, time
import torch
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function
from otel_recfn.support import forks

forks.FORK_WAIT_SECONDS = 100.0
folder = os.getcwd()
with open("slow-compiler", "w") as script:
    script.write(f"#!/bin/sh\\ntouch {folder}/compiling\\nuntil test -e {folder}/forked; do sleep 0.1; done\\nexit 1\\n")
os.chmod("slow-compiler", 0o755)
os.environ["CXX"] = f"{folder}/slow-compiler"
os.environ["OTEL_RECFN_CACHE_DIR"] = f"{folder}/cache"
parents, childs = InMemorySink(), InMemorySink()
instrumentor = OtelRecordFunctionInstrumentor()
instrumenting = threading.Thread(target=instrumentor.instrument, kwargs={"sinks": [parents]})
instrumenting.start()
while not os.path.exists("compiling"):
    time.sleep(0.01)
began = time.monotonic()
pid = os.fork()
assert time.monotonic() < began + 100, "the fork has waited for the compiler"
open("forked", "w").close()
if pid == 0:
    with record_function("before"):
        pass
    instrumentor.instrument(sinks=[childs])
    with record_function("after"):
        pass
    instrumentor.uninstrument()
    names = [[event.name for event in sink.events()] for sink in (parents, childs)]
    os._exit(0 if names == [[], ["after"]] else 1)
assert os.waitpid(pid, 0)[1] == 0
instrumenting.join()
with record_function("parent"):
    pass
instrumentor.uninstrument()
assert [event.name for event in parents.events()] == ["parent"]
"""

EXPORT = """
import os, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
if sys.argv[1] == "http":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    exporter = OTLPSpanExporter(endpoint=sys.argv[2])
else:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    exporter = OTLPSpanExporter(endpoint=sys.argv[2], insecure=True)
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
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


def test_forks_while_the_first_batch_is_written(run_program: Callable[..., Any]) -> None:
    run_program(FIRST_BATCH)


def test_a_fork_waits_once_for_an_exporter_that_hangs_and_the_child_exports(run_program: Callable[..., Any]) -> None:
    head = (
        "import os, threading\nparent, exported = os.getpid(), []\nhanging, flushing = threading.Event(), threading.Event()\n"
    )
    run_program(head + HANGING_EXPORTER, OTEL_BSP_SCHEDULE_DELAY="100")


@pytest.mark.torch
def test_a_child_that_is_made_while_another_thread_instruments_is_not_instrumented(
    run_with_torch: Callable[..., Any], needs_observer: None
) -> None:
    run_with_torch(COMPILING)


@pytest.mark.parametrize("protocol", ["http"])
def test_what_parent_and_children_record_is_exported_once(run_program: Callable[..., Any], protocol: str) -> None:
    with OtlpServer(protocol) as server:
        run_program(EXPORT, protocol, server.endpoint, GRPC_ENABLE_FORK_SUPPORT="1")
        names = [span.name for span in server.spans if span.name != "span"]
        ids = [span.span_id for span in server.spans]
    assert {name: names.count(name) for name in names} == {"parent": 40, "child 0": 20, "child 1": 20}
    assert len(ids) == len(set(ids))


@pytest.mark.torch
@pytest.mark.parametrize(("method", "forks"), [("os.fork", FORKS), ("fork", FORKS // 2), ("forkserver", 2), ("spawn", 1)])
def test_forks_at_random_moments_of_four_busy_threads(method: str, forks: int) -> None:
    command = [sys.executable, str(SCRIPT), "--method", method, "--forks", str(forks), "--child-seconds", str(PATIENCE_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
