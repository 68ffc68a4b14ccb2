"""Switched on and off, again and again, while operators run: the host never notices, and nesting
stays whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.example_counts import SOAK
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.model.batch import Event

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

THREADS = 8
CYCLES = 25 * SOAK
SHORT_CYCLES = 300
MAX_BYTES_EACH = 5 << 10


def check_nesting(events: list[Event]) -> None:
    """Every range was recorded once, in a range of the same capture and thread or in none, and
    strictly inside it.
    """
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
        siblings = (event.thread.number, event.parent)
        assert event.start_ns >= last_end.get(siblings, 0)
        last_end[siblings] = event.end_ns


def test_switched_often_while_8_threads_run(instrument: Callable[..., Any]) -> None:
    over = threading.Event()
    go_on = threading.Event()
    go_on.set()
    failed: list[BaseException] = []
    steps = [0] * THREADS

    def work(number: int) -> None:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        x = torch.ones(2, 4)
        try:
            while not over.is_set():
                go_on.wait()
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
        wait_until(lambda: all(steps) or bool(failed))
        for cycle in range(CYCLES):
            ours = instrument(record_shapes=cycle % 3 == 0, modules=cycle % 2 == 0)
            if cycle % 10 == 0:
                ours.instrumentor.flush(PATIENCE_S)
            ours.instrumentor.uninstrument()
            go_on.clear()  # what was captured is looked at in peace
            events = ours.finish()
            captured += len(events)
            check_nesting(events)
            go_on.set()
    finally:
        over.set()
        go_on.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert all(steps)
    assert captured > 0


def test_cycles_do_not_grow_the_process(run_with_torch: Callable[..., Any]) -> None:
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
print(cycles(int(sys.argv[1])) - before)
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("the size of a process is read from /proc")
    growth = int(run_with_torch(program, str(SHORT_CYCLES)).stdout)
    assert growth < SHORT_CYCLES * MAX_BYTES_EACH


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
hooks = [
    module._global_forward_hooks,
    module._global_forward_pre_hooks,
    module._global_forward_hooks_always_called,
]
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


def test_instrumented_twice(
    instrument: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = instrument()
    second = instrument()
    torch.relu(torch.ones(3))
    events = first.finish()
    assert [event.name for event in events].count("aten::relu") == 1
    assert second.sink.events() == []
    assert "already instrumented" in caplog.text
    second.finish()
