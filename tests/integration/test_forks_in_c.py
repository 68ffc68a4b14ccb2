"""Processes that C code forks, as uWSGI its workers: Python's handlers don't run, and each
records.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from helpers.trace_files import names_in, read_trace

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
Run = Callable[[str], Any]

BEGINNING = """
import ctypes, os, select, signal, sys, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def fork_in_c():
    "Forks until CPython itself continues; it never does if a thread asked for the GIL meanwhile."
    while True:
        is_partial, writing = os.pipe()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # nobody asks a thread for the GIL that had it for less
        time.sleep(2 * interval)
        child = ctypes.PyDLL(None).fork()
        sys.setswitchinterval(interval)
        if child == 0:
            for _ in range(4):
                in_thread(lambda: time.sleep(0.001))
            os.write(writing, b"!")
            return 0
        if select.select([is_partial], [], [], 10)[0]:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

def fork_in_c_with_handlers():
    "As C code does that calls Python's handlers itself."
    ctypes.pythonapi.PyOS_BeforeFork()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return child

def in_child(work, fork=fork_in_c, leave=os._exit):
    child = fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        leave(0)
    assert os.waitpid(child, 0)[1] == 0

def record(name):
    with record_function(name):
        pass

class Sink(InMemorySink):
    "Counts in how many children it went on."
    children = 0
    def after_fork_in_child(self):
        self.children += 1
        return super().after_fork_in_child()

sink, exporter, provider = Sink(), InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
instrumentor = OtelRecordFunctionInstrumentor()

def check(name, children=1):
    "That what this child records is exported and kept, once, and nothing of its parent's."
    exporter.clear()
    with provider.get_tracer("program").start_as_current_span("request"):
        record(name)
    assert instrumentor.flush(SECONDS)
    assert provider.force_flush(1000 * SECONDS)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert sorted(spans) == sorted([name, "request"])
    assert spans[name].parent.span_id == spans["request"].context.span_id
    assert [event.name for event in sink.events()] == [name]
    counts = instrumentor.counters()
    assert (counts["recorded"], counts["exported"]) == (1, 1), counts
    assert sink.children == children
"""


@pytest.fixture
def run(run_program: Callable[..., Any]) -> Run:
    """Runs a program that may fork by ``in_child``; a child that hangs is ended."""
    return lambda source: run_program((BEGINNING + source).replace("SECONDS", str(int(PATIENCE_S))))


@pytest.mark.parametrize(
    "children",
    [
        pytest.param("in_child(lambda: check('child'))", id="range"),
        pytest.param("in_child(lambda: (instrumentor.flush(SECONDS), check('child')))", id="flush"),
        pytest.param(
            "in_child(lambda: (provider.force_flush(), check('child')))", id="the provider's flush"
        ),
        pytest.param("in_child(lambda: in_thread(lambda: check('child')))", id="another thread"),
        pytest.param("in_thread(lambda: in_child(lambda: check('child')))", id="a thread forks"),
        pytest.param("in_child(lambda: in_child(lambda: check('grandchild')))", id="grandchild"),
        pytest.param(
            "in_child(lambda: (check('child'), in_child(lambda: check('grandchild', 2)),"
            " check_parent()))",
            id="child and grandchild",
        ),
        pytest.param(
            "in_child(lambda: (check('child'), in_child(lambda: check('other', 2), os.fork)))",
            id="then one of Python's",
        ),
        pytest.param(
            "in_child(lambda: in_child(lambda: check('child', 2)), os.fork)",
            id="after one of Python's",
        ),
        pytest.param(
            "in_child(lambda: check('child'), fork_in_c_with_handlers)", id="and Python's handlers"
        ),
    ],
)
def test_what_a_child_records_is_its_own(run: Run, children: str) -> None:
    """Whatever the first use of ours is there, and whoever forks; and the parent goes on."""
    run(f"""
instrumentor.instrument(sinks=[sink])
def check_parent():
    assert instrumentor.flush(SECONDS)
    before = [event.name for event in sink.events()]
    record("after")
    assert instrumentor.flush(SECONDS)
    assert [event.name for event in sink.events()] == [*before, "after"]
with provider.get_tracer("program").start_as_current_span("outer"):
    record("before")
    with record_function("open"):
        {children}
check_parent()
""")


def test_each_process_has_a_chrome_trace_of_its_own(run: Run, tmp_path: Path) -> None:
    done = run("""
instrumentor.instrument(chrome_trace="trace.json")
record("before")
instrumentor.flush(SECONDS)
def work():
    record("child")
    assert instrumentor.flush(SECONDS)
    print(os.getpid(), flush=True)
in_child(work, leave=sys.exit)
record("after")
""")
    assert names_in(tmp_path / "trace.json") == ["before", "after"]
    assert names_in(tmp_path / f"trace.pid{done.stdout.split()[0]}.json") == ["child"]
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_profile_that_runs_over_the_fork_has_the_childs_events_in_the_child(run: Run) -> None:
    run("""
with profile() as prof:
    record("parent")
    def work():
        record("child")
        prof.stop()
        assert [event.name for event in prof.events()] == ["child"]
    in_child(work)
    record("parent again")
assert [event.name for event in prof.events()] == ["parent", "parent again"]
""")


def test_python_calls_of_a_child_that_uses_nothing_else_are_recorded(run: Run) -> None:
    run("""
def called(): pass
with profile(python_calls=True) as prof:
    def work():
        called()
        prof.stop()
        names = [event.name for event in prof.events()]
        assert any("called" in name for name in names), names
        assert not any("in_the_parent" in name for name in names), names
    def in_the_parent(): pass
    in_the_parent()
    in_child(work)
""")


def test_a_legacy_run_goes_on_in_the_child_with_its_own_events(run: Run) -> None:
    run("""
from otel_recfn.legacy import ProfilerConfig, ProfilerState
from otel_recfn.legacy import disable_profiler_legacy, enable_profiler_legacy
def names():
    found = {event.name for events in disable_profiler_legacy() for event in events}
    return found - {"__start_profile", "__stop_profile", ""}
enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
record("before")
def work():
    record("child")
    found = names()
    assert found == {"child"}, found
in_child(work)
record("after")
assert names() == {"before", "after"}
""")


def test_metrics_of_a_child_count_what_it_ran(run: Run) -> None:
    run("""
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
instrumentor.instrument()
def durations():
    found = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else []:
        for metric in [metric for scope in resource.scope_metrics for metric in scope.metrics]:
            if metric.name == "recfn.operation.duration":
                for point in metric.data.data_points:
                    found[point.attributes["recfn.name"]] = point.count
    return found
record("parent")
def work():
    reader.get_metrics_data()  # what the parent had handed on before is the reader's
    record("child")
    instrumentor.flush(SECONDS)
    found = durations()
    assert found["child"] == 1 and found.get("parent", 0) <= 1, found
in_child(work)
record("parent")
instrumentor.flush(SECONDS)
assert durations() == {"parent": 2}
""")


@pytest.mark.torch
def test_operators_of_a_child(run_with_torch: Callable[..., Any], tmp_path: Path) -> None:
    source = (
        "import torch\n"
        + BEGINNING
        + """
instrumentor.instrument(chrome_trace="trace.json")
model, data = torch.nn.Linear(2, 2), torch.ones(2)
model(data)
def work():
    with provider.get_tracer("program").start_as_current_span("request"):
        model(data).sum().backward()
    assert instrumentor.flush(SECONDS) and provider.force_flush(1000 * SECONDS)
    names = {span.name for span in exporter.get_finished_spans()}
    assert {"request", "Linear"} <= names, names
in_child(work)
model(data)
"""
    )
    run_with_torch(source.replace("SECONDS", str(int(PATIENCE_S))))
    own, *children = sorted(tmp_path.glob("*.json"), key=lambda path: len(path.name))
    [child] = children
    assert read_trace(own)["schemaVersion"] == 1
    assert "AddmmBackward0" in {*names_in(child)} - {*names_in(own)}
