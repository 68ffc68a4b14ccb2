"""Threads of ours import nothing: a forked child would wait for ever for a module that its
parent was importing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from helpers.otlp_server import OtlpServer

PROGRAM = """
import importlib, json, logging, os, sys, threading, time

imported = set()

def watch(event, arguments):
    # "Dummy" is a thread that was started without a Thread, as one of ours is.
    name = threading.current_thread().name
    if event == "import" and name.startswith(("otel-recfn", "Dummy")):
        imported.add((name, arguments[0]))

sys.addaudithook(watch)
protocol, endpoint, suffix, with_torch = sys.argv[1:]
protocol, _, native = protocol.partition("-")
logging.basicConfig(stream=open(os.devnull, "w"))
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

class Raising(BatchSpanProcessor):
    def on_end(self, span):
        if span.instrumentation_scope.name == "otel_recfn":
            raise KeyError("on_end")

    def force_flush(self, timeout_millis=0):
        raise KeyError("force_flush")

if protocol == "http":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    exporter = OTLPSpanExporter(endpoint=endpoint.replace("127.0.0.1", "localhost"), timeout=1)
elif protocol == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=1)
else:
    exporter = ConsoleSpanExporter(out=open(os.devnull, "w"))
native = {"span_exporter": exporter} if native else {}
provider = TracerProvider()
provider.add_span_processor((Raising if protocol == "raising" else BatchSpanProcessor)(exporter))
trace.set_tracer_provider(provider)

from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerState
from otel_recfn.legacy import disable_profiler_legacy, enable_profiler_legacy
from otel_recfn.legacy.run import ProfilerRun

class Failing(InMemorySink):
    name = "failing"

    def write(self, batch):
        {}["no such key"]

def work():
    with trace.get_tracer("program").start_as_current_span("span"), record_function("in a span"):
        if with_torch:
            train()
        try:
            with record_function("left by an error \\udc80"):
                raise ValueError("\\u00fc")
        except ValueError:
            pass
    with record_function("Optimizer.step#ours"):
        pass

def train():
    torch = sys.modules["torch"]
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def drained(rounds=2):
    # by the threads of ours, which flush() would anticipate
    for _ in range(rounds):
        seen = instrumentor.counters()["recorded"]
        work()
        until = time.monotonic() + 100
        while instrumentor.counters()["recorded"] == seen and time.monotonic() < until:
            time.sleep(0.01)

if with_torch:
    importing = threading.Thread(target=importlib.import_module, args=("torch",))
    importing.start()
    while "torch" not in sys.modules:
        time.sleep(0.001)
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(
    chrome_trace=f"trace{suffix}", sinks=[Failing()], record_shapes=True, **native
)
if with_torch:
    importing.join()
    while any(thread.name == "otel-recfn torch import" for thread in threading.enumerate()):
        time.sleep(0.01)
drained()
with profile(record_shapes=True, with_stack=True, profile_memory=True, with_flops=True) as prof:
    drained()
enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
drained()
disable_profiler_legacy()
run = ProfilerRun(ProfilerConfig(ProfilerState.CPU))
run.start()
drained()
del run  # its last reference: a thread of ours ends it
instrumentor.flush(100)
drained(rounds=1)
counters = instrumentor.counters()
instrumentor.uninstrument()
print(json.dumps([sorted(imported), counters["recorded"]]))
"""


def imported_in_own_threads(run_program: Callable[..., Any], *arguments: str) -> list[list[str]]:
    imported, rows = json.loads(run_program(PROGRAM, *arguments).stdout.splitlines()[-1])
    assert rows > 0
    return list(imported)


@pytest.mark.parametrize("mode", ["ok", "refuse"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_thread_of_ours_imports_while_it_exports(
    run_program: Callable[..., Any], protocol: str, mode: str
) -> None:
    with OtlpServer(protocol, mode) as server:
        assert not imported_in_own_threads(run_program, protocol, server.endpoint, ".json", "")


@pytest.mark.one_python
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_thread_of_ours_imports_while_it_sends_requests(
    run_program: Callable[..., Any], protocol: str
) -> None:
    with OtlpServer(protocol, "error") as server:
        assert not imported_in_own_threads(
            run_program, f"{protocol}-native", server.endpoint, ".json", ""
        )


def test_no_thread_of_ours_imports_to_log_what_failed(run_program: Callable[..., Any]) -> None:
    assert not imported_in_own_threads(run_program, "raising", "", ".json.gz", "")


@pytest.mark.torch
def test_no_thread_of_ours_imports_to_observe_torch(run_program: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    assert not imported_in_own_threads(run_program, "console", "", ".json.gz", "torch")
