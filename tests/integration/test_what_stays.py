"""What is left in a process after ``instrument()``, ``uninstrument()`` and profiles came and went:
nothing that costs the program anything, however often.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

PROGRAM = """
import collections, gc, json, multiprocessing.process, os, sys, threading
import opentelemetry.context, opentelemetry.propagate, opentelemetry.sdk.trace, opentelemetry.trace
import torch, torch.futures, torch.jit, torch.nn.modules.module, torch.optim.optimizer
import torch.utils.data
from opentelemetry.sdk.trace import TracerProvider
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile

optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim takes it out of its names
PLACES = [
    torch, torch._C, torch.Tensor, torch.autograd, torch.autograd.profiler, torch.futures.Future,
    torch.amp.GradScaler, torch.jit, torch.nn.Module, torch.nn.modules.module,
    torch.optim.Optimizer, optimizers, torch.utils.data, torch.utils.data.DataLoader,
    opentelemetry.context, opentelemetry.propagate, opentelemetry.sdk.trace, opentelemetry.trace,
    multiprocessing.process.BaseProcess, os, sys, threading, threading.Thread,
]
HOOKED = [torch.nn.modules.module, optimizers]
layers = [torch.nn.Linear(4, 4) for _ in range(4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
provider = TracerProvider()
tracer = provider.get_tracer("program")

def step():
    with tracer.start_as_current_span("request"):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

def cycle():
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, sinks=[InMemorySink()], record_shapes=True,
        chrome_trace="trace.json",
    )
    step()
    instrumentor.uninstrument()
    with profile(record_shapes=True, with_stack=True) as prof:
        step()
    assert len(prof.key_averages())

def functions():
    return {
        f"{place.__name__}.{name}": id(value)
        for place in PLACES for name, value in list(vars(place).items()) if callable(value)
    }

def state():
    return {
        "hooks": {
            f"{place.__name__}.{name}": len(value)
            for place in HOOKED for name, value in vars(place).items()
            if name.startswith("_global") and hasattr(value, "__len__")
        },
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "profiled": [repr(sys.getprofile()), repr(sys.gettrace())],
        "processors": len(provider._active_span_processor._span_processors),
    }

def objects():
    for _ in range(3):
        gc.collect()
    return collections.Counter(
        f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
    )

step()
functions_before, state_before = functions(), state()
for _ in range(3):
    cycle()
few = objects()
CYCLES = 25
for _ in range(CYCLES):
    cycle()
many = objects()
functions_after = functions()
print(json.dumps({
    "replaced": [
        name for name, id_ in functions_before.items() if functions_after.get(name) != id_
    ],
    "added": sorted({*functions_after} - {*functions_before}),
    "before": state_before,
    "after": state(),
    "grown": {name: many[name] - few[name] for name in many if many[name] - few[name] >= CYCLES},
}))
"""


@pytest.fixture(scope="module")
def seen(run_by: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = run_by(tmp_path_factory.mktemp("program"), sys.executable)
    return json.loads(run(PROGRAM).stdout.splitlines()[-1])


def test_no_function_of_others_is_replaced_or_added(seen: Any) -> None:
    assert seen["replaced"] == []
    assert seen["added"] == []


def test_no_hook_thread_or_processor_is_left(seen: Any) -> None:
    assert seen["after"] == seen["before"]


def test_nothing_of_ours_and_no_span_of_the_program_is_kept(seen: Any) -> None:
    """That is, less than one a cycle: the newest rows are kept, of which one cycle has more than
    another.
    """
    kept = {
        name: number
        for name, number in seen["grown"].items()
        if name.startswith(("otel_recfn", "opentelemetry", "torch"))
    }
    assert kept == {}
