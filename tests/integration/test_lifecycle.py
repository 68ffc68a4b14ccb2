"""Switched on and off while operators run, forked, ended: the host never notices, and nesting stays whole."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, RecordScope
from otel_recfn.model.batch import Event
from otel_recfn.model.errors import SettingError
from otel_recfn.model.events import EventFlag
from otel_recfn.session import process_session
from otel_recfn.support.span_ids import span_id

torch = pytest.importorskip("torch")

from torch_programs import Training  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

THREADS = 8
CYCLES = 200
MAX_GROWTH_BYTES = 5 << 20
EXITS = 20


def check_nesting(events: list[Event]) -> None:
    """Every range was recorded once, in a range of the same capture and thread or in none, and strictly inside it."""
    by_id = {event.event_id: event for event in events}
    assert len(by_id) == len(events)
    last_end: dict[tuple[int, int], int] = {}
    for event in sorted(events, key=lambda event: event.event_id):
        assert event.end_ns >= event.start_ns
        if event.parent:
            around = by_id[event.parent]
            assert around.thread == event.thread
            assert around.start_ns <= event.start_ns
            assert event.end_ns <= around.end_ns
        beside = (event.thread.number, event.parent)
        assert event.start_ns >= last_end.get(beside, 0)
        last_end[beside] = event.end_ns


def test_switched_200_times_while_8_threads_run(instrument: Callable[..., Any]) -> None:
    over = threading.Event()
    failed: list[BaseException] = []
    steps = [0] * THREADS

    def work(number: int) -> None:
        layers, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)
        try:
            while not over.is_set():
                with torch.profiler.record_function("outer"):
                    layers(x).sum().backward()
                steps[number] += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    captured = 0
    try:
        for cycle in range(CYCLES):
            ours = instrument(record_shapes=cycle % 3 == 0, modules=cycle % 2 == 0)
            if cycle % 10 == 0:
                ours.instrumentor.flush()
            events = ours.finish()
            captured += len(events)
            check_nesting(events)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert all(steps)
    assert captured > 0


def test_what_was_open_at_the_end_is_partial(instrument: Callable[..., Any]) -> None:
    ours = instrument()
    with torch.profiler.record_function("open"):
        torch.relu(torch.ones(3))
        first = ours.finish()
        again = instrument()
        torch.relu(torch.ones(3))
    second = again.finish()
    (opened,) = (event for event in first if event.name == "open")
    assert opened.flags == EventFlag.PARTIAL
    relus = [event for event in (*first, *second) if event.name == "aten::relu"]
    assert [event.parent for event in relus] == [opened.event_id, 0]
    assert "open" not in {event.name for event in second}
    check_nesting(first)
    check_nesting(second)


def test_1000_cycles_do_not_grow_the_process(run_program: Callable[..., Any]) -> None:
    program = """
import gc, os, sys
import torch
from otel_recfn import OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()
model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)

def cycles(count):
    for _ in range(count):
        instrumentor.instrument()
        model(x).sum().backward()
        instrumentor.uninstrument()
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before = cycles(50)
print(cycles(1000) - before)
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("the size of a process is read from /proc")
    growth = int(run_program(program).stdout)
    assert growth < MAX_GROWTH_BYTES


def test_not_enabled_registers_nothing(run_program: Callable[..., Any]) -> None:
    program = """
import os, sys, threading
from opentelemetry import context
from otel_recfn import OtelRecordFunctionInstrumentor
own, threads = dict(vars(context._RUNTIME_CONTEXT)), threading.enumerate()
finders = list(sys.meta_path)
OtelRecordFunctionInstrumentor().instrument(enabled=False, chrome_trace="trace.json")
assert not {"torch", "numpy", "otel_recfn._native"} & set(sys.modules)
import torch
from torch.nn.modules import module
hooks = module._global_forward_hooks, module._global_forward_pre_hooks, module._global_forward_hooks_always_called
assert not any(hooks)
torch.relu(torch.ones(3))
assert threading.enumerate() == threads
assert sys.meta_path[:len(finders)] == finders
assert dict(vars(context._RUNTIME_CONTEXT)) == own
assert "otel_recfn._native" not in sys.modules
assert OtelRecordFunctionInstrumentor().counters() == {}
assert os.listdir() == ["program.py"]
OtelRecordFunctionInstrumentor().uninstrument()
from otel_recfn.sinks.in_memory import InMemorySink
sink = InMemorySink()
OtelRecordFunctionInstrumentor().instrument(sinks=[sink])
torch.relu(torch.ones(3))
OtelRecordFunctionInstrumentor().uninstrument()
assert sink.events()
assert not any(hooks)
assert dict(vars(context._RUNTIME_CONTEXT)) == own
assert threading.enumerate() == threads
"""
    run_program(program)


@pytest.mark.parametrize(
    ("keywords", "named", "allowed"),
    [
        ({"scopes": {99}}, "scopes", "FUNCTION"),
        ({"scopes": "FUNCTION"}, "scopes", "BACKWARD_FUNCTION"),
        ({"chrome_trace": "trace.txt"}, "chrome_trace", ".json.gz"),
        ({"chrome_trace": "/no/such/folder/trace.json"}, "chrome_trace", "/no/such/folder"),
        ({"roots_per_second": -1}, "roots_per_second", "zero or more"),
        ({"record_shapes": 1}, "record_shapes", "True or False"),
        ({"modules": "yes"}, "modules", "True or False"),
        ({"buffer_bytes": 1}, "buffer_bytes", "from 4096"),
        ({"enabled": None}, "enabled", "True or False"),
        ({"scope": None}, "scope", "tracer_provider, scopes"),
    ],
)
def test_wrong_settings(keywords: dict[str, Any], named: str, allowed: str) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    with pytest.raises(SettingError) as raised:
        instrumentor.instrument(**keywords)
    assert named in str(raised.value)
    assert allowed in str(raised.value)
    assert not instrumentor.is_instrumented_by_opentelemetry


def test_wrong_settings_of_the_environment(run_program: Callable[..., Any]) -> None:
    program = """
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.model.errors import SettingError
try:
    OtelRecordFunctionInstrumentor().instrument()
except SettingError as error:
    print(error)
"""
    said = run_program(program, OTEL_RECFN_MODULES="perhaps").stdout
    assert "OTEL_RECFN_MODULES='perhaps'" in said
    assert "true or false" in said


def test_a_wrong_setting_ends_no_other_instrumentation(run_program: Callable[..., Any]) -> None:
    """As opentelemetry-instrument calls us."""
    program = """
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
"""
    assert "OTEL_RECFN_MODULES='perhaps'" in run_program(program, OTEL_RECFN_MODULES="perhaps").stderr


def test_instrumented_twice(instrument: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    first = instrument()
    second = instrument()
    torch.relu(torch.ones(3))
    events = first.finish()
    assert [event.name for event in events].count("aten::relu") == 1
    assert second.sink.events() == []
    assert "already instrumented" in caplog.text
    second.finish()


def test_again_with_other_settings(instrument: Callable[..., Any]) -> None:
    x = torch.ones(3)
    for shapes in (False, True, False):
        ours = instrument(record_shapes=shapes, scopes={RecordScope.FUNCTION} if shapes else None)
        with torch.profiler.record_function("user"):
            torch.relu(x)
        events = ours.finish()
        assert [event.shapes for event in events if event.name == "aten::relu"] == ["[[3]]" if shapes else ""]
        assert ("user" in {event.name for event in events}) is not shapes


def chrome_events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event["ph"] in ("X", "b")]


FORKING = {
    "os.fork": """
pid = os.fork()
if pid == 0:
    work(torch.nn.Tanh())
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "multiprocessing fork": """
process = multiprocessing.get_context("fork").Process(target=work, args=(torch.nn.Tanh(),))
process.start()
process.join()
assert process.exitcode == 0
""",
    "multiprocessing spawn": """
process = multiprocessing.get_context("spawn").Process(target=spawned, args=(torch.nn.Tanh(),))
process.start()
process.join()
assert process.exitcode == 0
""",
    "data loader": """
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
assert len(list(loader)) == 4
del loader
""",
}


@pytest.mark.parametrize("way", FORKING)
def test_children(run_program: Callable[..., Any], tmp_path: Path, way: str) -> None:
    """A child writes what it does itself into a file of its own; the parent's file is the parent's alone."""
    program = f"""
import multiprocessing, os, sys
import torch
from otel_recfn import OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()

def work(layer):
    with torch.profiler.record_function(f"work of {{os.getpid()}}"):
        layer(torch.ones(3))

def spawned(layer):
    instrumentor.instrument(chrome_trace="trace.json.gz")
    work(layer)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        work(torch.nn.Tanh())
        return index

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(os.getpid())
    instrumentor.instrument(chrome_trace="trace.json.gz")
    work(torch.nn.ReLU())
{"".join(f"    {line}" for line in FORKING[way].strip().splitlines(keepends=True))}
    work(torch.nn.ReLU())
"""
    parent = int(run_program(program).stdout.splitlines()[0])
    files = {path.name: path for path in tmp_path.glob("trace*")}
    mine = chrome_events(files.pop("trace.json.gz"))
    assert [event["name"] for event in mine].count(f"work of {parent}") == 2
    assert {event["pid"] for event in mine} == {parent}
    assert "aten::relu" in {event["name"] for event in mine}
    assert "aten::tanh" not in {event["name"] for event in mine}
    assert len(files) == (2 if way == "data loader" else 1)
    for name, path in files.items():
        child = chrome_events(path)
        (pid,) = {event["pid"] for event in child}
        assert name == f"trace.pid{pid}.json.gz"
        assert pid != parent
        tanhs = [event["name"] for event in child].count("aten::tanh")
        assert tanhs == [event["name"] for event in child].count(f"work of {pid}") == (4 if way == "data loader" else 1)
        assert f"work of {parent}" not in {event["name"] for event in child}


def test_exit_code_and_output_are_the_programs(run_program: Callable[..., Any], tmp_path: Path) -> None:
    program = """
import sys
if sys.argv[1] == "instrumented":
    from otel_recfn import OtelRecordFunctionInstrumentor
    OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json.gz")
import torch
print(torch.relu(torch.tensor([-1.0, 2.0])).tolist())
print("to stderr", file=sys.stderr)
sys.exit(3)
"""
    plain = run_program(program, "plain", code=3)
    observed = run_program(program, "instrumented", code=3)
    assert (plain.stdout, plain.stderr) == (observed.stdout, observed.stderr)
    assert "aten::relu" in {event["name"] for event in chrome_events(tmp_path / "trace.json.gz")}


@pytest.mark.parametrize("work", ["ranges", "operators"])
def test_exit_while_daemon_threads_run(run_program: Callable[..., Any], tmp_path: Path, work: str) -> None:
    """Never a hang, and the file is whole. PyTorch itself aborts when a daemon thread's operator wants the GIL of a Python that
    is gone, so with operators that is what may happen with us too, and nothing else."""
    program = f"""
import os, signal, threading
import torch
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
torch.set_num_threads(1)
x = torch.ones(3)

def ranges():
    started.wait()
    while True:
        with record_function("ours"):
            sum(range(20_000))

def operators():
    started.wait()
    while True:
        with record_function("ours"):
            torch.relu(x)

for number in range({EXITS}):
    child = os.fork()
    if child == 0:
        OtelRecordFunctionInstrumentor().instrument(chrome_trace=f"trace{{number}}.json.gz")
        started = threading.Barrier(3)
        for _ in range(2):
            threading.Thread(target={work}, daemon=True).start()
        started.wait()
        for _ in range(20):
            torch.tanh(x)
        break
    status = os.waitpid(child, 0)[1]
    assert status == 0 or {work == "operators"} and os.WTERMSIG(status) == signal.SIGABRT, status
"""
    run_program(program)
    files = list(tmp_path.glob("trace*.json.gz"))
    assert len(files) == EXITS
    for file in files:
        assert [event["name"] for event in chrome_events(file)].count("aten::tanh") == 20


@pytest.mark.parametrize("first", ["profiler", "ours"])
def test_beside_a_profiler(instrument: Callable[..., Any], first: str) -> None:
    x = torch.ones(3)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    if first == "profiler":
        profiler.start()
        ours = instrument()
    else:
        ours = instrument()
        profiler.start()
    torch.relu(x)
    ours.finish()
    torch.tanh(x)
    profiler.stop()
    torch.sigmoid(x)
    assert [event.name for event in profiler.events()] == ["aten::relu", "aten::clamp_min", "aten::tanh"]
    assert [event.name for event in ours.sink.events() if event.name == "aten::relu"] == ["aten::relu"]


def test_tasks_of_one_thread_in_spans_of_their_own(instrument: Callable[..., Any]) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("program")
    sizes = {"first": 3, "second": 4}

    async def request(name: str, mine: asyncio.Event, others: asyncio.Event) -> None:
        with tracer.start_as_current_span(name):
            for _ in range(10):  # each waits for the other before its next step: they alternate
                await mine.wait()
                mine.clear()
                torch.relu(torch.ones(sizes[name]))
                others.set()

    async def serve() -> None:
        turns = asyncio.Event(), asyncio.Event()
        turns[0].set()
        await asyncio.gather(request("first", *turns), request("second", *reversed(turns)))

    ours = instrument(tracer_provider=provider, record_shapes=True)
    asyncio.run(serve())
    events = ours.finish()
    provider.force_flush()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    requests = {span.name: span for span in spans.values() if span.name in sizes}
    for name, size in sizes.items():
        relus = [event for event in events if event.name == "aten::relu" and event.shapes == f"[[{size}]]"]
        assert len(relus) == 10
        for event in relus:
            assert spans[span_id(event.event_id)].parent.span_id == requests[name].context.span_id
            assert event.context.span_id == requests[name].context.span_id
    provider.shutdown()


def test_modules_that_raise_end_with_an_error(instrument: Callable[..., Any]) -> None:
    ours = instrument()
    with pytest.raises(RuntimeError):
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 4))(torch.ones(2, 5))
    torch.relu(torch.ones(3))
    events = ours.finish()
    modules = [event for event in events if event.name.startswith("nn.Module: ")]
    assert [bool(event.flags & EventFlag.ERROR) for event in modules] == [True, False, True]
    assert all("RuntimeError" in event.error for event in modules if event.flags & EventFlag.ERROR)
    assert events[-1].name == "aten::clamp_min"
    assert next(event for event in reversed(events) if event.name == "aten::relu").parent == 0
    check_nesting(events)


def test_counters_balance(instrument: Callable[..., Any]) -> None:
    ours = instrument()
    before = ours.counters()
    Training().step()
    events = ours.finish()
    after = ours.counters()
    assert after["recorder.recorded"] - before["recorder.recorded"] == after["rows"] == len(events)
    assert after["recorder.dropped"] == before["recorder.dropped"]


def test_a_buffer_that_is_too_small_is_counted(instrument: Callable[..., Any]) -> None:
    """The buffer belongs to a new thread: earlier ones keep theirs."""
    ours = instrument(buffer_bytes=4096)
    before = ours.counters()

    def work() -> None:
        with torch.profiler.record_function("outer"):
            for _ in range(100):
                torch.relu(torch.ones(3))

    # One thread, so that nothing is drained in between: the drain waits for this lock.
    with process_session()._draining.held():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    events = ours.finish()
    after = ours.counters()
    dropped = after["recorder.dropped"] - before["recorder.dropped"]
    assert dropped > 0
    assert len(events) + dropped == 1 + 100 * 5
    check_nesting(events)
