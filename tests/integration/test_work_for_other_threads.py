"""What PyTorch runs in threads of its own, or calls back from them, lies in what was current
where it was launched.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from opentelemetry import trace  # noqa: E402

import otel_recfn  # noqa: E402
from helpers.exported_traces import Traces  # noqa: E402
from helpers.timeouts import wait_until  # noqa: E402
from helpers.torch_programs import reentrant_training, scripted_programs  # noqa: E402
from otel_recfn import profile, record_function  # noqa: E402

pytestmark = pytest.mark.torch
NODE = "autograd::engine::evaluate_function: "
DEVICE = """
import torch, asyncio, json, sys, threading
from helpers import python_device
from helpers.exported_traces import Traces
from opentelemetry import trace
from otel_recfn import record_function

if not python_device.AVAILABLE:
    print(json.dumps(None))
    sys.exit()
training = python_device.Training()
training.backward()
traces = Traces()
seen = []

{body}

paths = traces.all_paths()
nodes = {{path: count for path, count in paths.items() if "MulBackward0" in path.split("/")[-1]}}
print(json.dumps([nodes, paths, seen]))
"""


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def on_device(run: Run, body: str) -> tuple[dict[str, int], dict[str, int], list[Any]]:
    """Paths of the nodes of multiplications, of all spans, and what the program has seen."""
    found = json.loads(run(DEVICE.format(body=body)).stdout.splitlines()[-1])
    if found is None:
        pytest.skip("this torch cannot have a device that is written in Python")
    nodes, paths, seen = found
    return nodes, paths, seen


@pytest.fixture
def run(run_with_torch: Run) -> Run:
    """Runs a program that finds the helpers of these tests too."""
    places = [
        Path(otel_recfn.__file__).parents[1],
        Path(__file__).parents[1],
        Path(__file__).parent,
    ]
    return lambda program: run_with_torch(program, PYTHONPATH=os.pathsep.join(map(str, places)))


def evaluated(*around: str) -> str:
    return "/".join([*around, NODE + "MulBackward0"])


def test_the_parent_of_a_devices_backward_is_current_where_it_begins(
    run: Run,
) -> None:
    nodes, _, _ = on_device(
        run,
        """
for step in range(3):
    with traces.tracer.start_as_current_span("step"):
        training.backward()
        with record_function("range"):
            training.backward()
        with record_function("over"):
            pass
        training.backward()
        with torch.profiler.record_function("of PyTorch's"):
            training.backward()
        training.backward()
    with record_function("no span"):
        training.backward()
training.backward()
""",
    )
    assert nodes[evaluated("step")] == 9
    assert nodes[evaluated("step", "of PyTorch's")] == 3
    assert nodes[evaluated("step", "range")] == 3
    assert (
        sum(count for path, count in nodes.items() if path.endswith("no span/" + evaluated())) == 3
    )
    [alone] = [
        path
        for path in nodes
        if path.count("/") == 1 and path.endswith(evaluated()) and not path.startswith("step")
    ]
    assert nodes[alone] == 1  # in a root of ours, named after the thread
    assert sum(nodes.values()) == 2 * 19


def test_for_a_profile_a_fork_in_a_span_lies_in_the_range_around_the_span() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def launch(x: torch.Tensor) -> torch.jit.Future[torch.Tensor]:
        return torch.jit.fork(branch, x)

    scripted = torch.jit.script(launch)
    traces = Traces()
    ended = "<forked function>"
    with profile() as prof:
        with record_function("outer"), traces.tracer.start_as_current_span("span"):
            scripted(torch.ones(2)).wait()
        wait_until(lambda: ended in [event.name for event in prof.events()])
    traces.instrumentor.uninstrument()
    by_id = {event.event_id: event for event in prof.events()}
    [fork] = [event for event in by_id.values() if event.name == ended]
    assert by_id[fork.parent].name == "outer"
    assert fork.thread != by_id[fork.parent].thread
    assert traces.paths()[f"MainThread/outer/span/{ended}/aten::sigmoid"] == 1


def test_the_task_that_begins_the_backward_counts_and_not_the_one_that_ran_before(run: Run) -> None:
    nodes, _, _ = on_device(
        run,
        """
async def request(name):
    with traces.tracer.start_as_current_span(name):
        for _ in range(5):
            await asyncio.sleep(0)
            training.backward()

async def in_thread():
    with traces.tracer.start_as_current_span("in a thread"):
        await asyncio.to_thread(training.backward)

async def all_of_them():
    await asyncio.gather(request("one"), request("other"), in_thread())

asyncio.run(all_of_them())
""",
    )
    assert {
        path: count for path, count in nodes.items() if path.endswith(NODE + "MulBackward0")
    } == {
        evaluated("one"): 5,
        evaluated("other"): 5,
        evaluated("in a thread"): 1,
    }


def test_python_in_a_devices_backward_sees_the_launching_span(run: Run) -> None:
    _, paths, seen = on_device(
        run,
        """
def in_backward():
    span_id = trace.get_current_span().get_span_context().span_id
    seen.append([span_id, threading.current_thread() is threading.main_thread()])
    with record_function("ours"), traces.tracer.start_as_current_span("theirs"):
        torch.neg(traces.x)

python_device.Copied.in_backward = staticmethod(in_backward)
for _ in range(2):
    with traces.tracer.start_as_current_span("step") as step:
        seen.append([step.get_span_context().span_id, True])
        training.backward()
""",
    )
    for launching, inside in (seen[:2], seen[2:]):
        assert inside == [launching[0], False]
    assert paths[f"step/{NODE}CopiedBackward/CopiedBackward/ours/theirs/aten::neg"] == 2


def test_nothing_is_recorded_for_a_span_that_is_not_sampled(run: Run) -> None:
    nodes, _, _ = on_device(
        run,
        """
unsampled = trace.NonRecordingSpan(trace.SpanContext(7, 8, False, trace.TraceFlags(0)))
with trace.use_span(unsampled):
    training.backward()
with traces.tracer.start_as_current_span("step"):
    training.backward()
""",
    )
    assert {path for path in nodes if path.endswith(NODE + "MulBackward0")} == {evaluated("step")}


def test_a_backward_deep_within_backwards(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("step"):
        reentrant_training(torch.tensor(130.0, requires_grad=True))
    nodes = [
        path.split("/")
        for path in traces.all_paths().elements()
        if path.endswith("/ReentrantBackward")
    ]
    assert {names[0] for names in nodes} == {"step"}
    # Each in the one that began it.
    assert sorted(names.count("ReentrantBackward") for names in nodes) == list(range(1, 132))


def test_forks_of_torchscript(traces: Traces) -> None:
    _, fork_and_wait = scripted_programs()
    for name in ("one", "other"):
        with traces.tracer.start_as_current_span(name), record_function("range"):
            fork_and_wait(torch.ones(3))
    paths = traces.all_paths()
    assert [paths[f"{name}/range/<forked function>/aten::relu"] for name in ("one", "other")] == [
        2,
        2,
    ]
    assert not [
        path for path in paths if "forked" in path and path.split("/")[0] not in ("one", "other")
    ]


QUEUED = """
import json, threading
import torch
from helpers.exported_traces import Traces
from otel_recfn import record_function

waits, may_go_on = threading.Event(), threading.Event()

def wait(x):
    waits.set()
    may_go_on.wait()
    return x.clone()

library = torch.library.Library("program", "DEF")
library.define("wait(Tensor x) -> Tensor")
library.impl("wait", wait, "CPU")

def launch(x: torch.Tensor):
    return torch.jit.fork(torch.ops.program.wait, x)

def launch_later(x: torch.Tensor):
    return torch.jit.fork(torch.sigmoid, x)

torch.set_num_interop_threads(1)
launch, launch_later = torch.jit.script(launch), torch.jit.script(launch_later)
traces = Traces()
with traces.tracer.start_as_current_span("span"):
    with record_function("outer"):
        first = launch(traces.x)
        waits.wait()
        with record_function("inner"):
            queued = launch_later(traces.x)
    may_go_on.set()
    first.wait(), queued.wait()
print(json.dumps(traces.all_paths()))
"""


def test_a_fork_that_waits_in_a_queue_lies_in_the_range_that_launched_it(run: Run) -> None:
    """Which is over when the fork begins: how long it waits doesn't decide where it is."""
    paths = json.loads(run(QUEUED).stdout.splitlines()[-1])
    found = [path for path in paths if path.endswith("aten::sigmoid")]
    assert found == ["span/outer/inner/<forked function>/aten::sigmoid"]


@contextmanager
def gloo(folder: Path) -> Iterator[Any]:
    """PyTorch's collectives, in a group of one, whose threads have ended afterwards."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1
    )
    try:
        yield distributed
    finally:
        distributed.destroy_process_group()


def test_collectives(traces: Traces, tmp_path: Path) -> None:
    with gloo(tmp_path) as distributed:
        for name in ("one", "other"):
            with traces.tracer.start_as_current_span(name):
                distributed.all_reduce(traces.x, async_op=True).wait()
    found = Counter(
        path.split("/")[0]
        for path in traces.all_paths().elements()
        if path.endswith("gloo:all_reduce")
    )
    assert found == {"one": 1, "other": 1}


def test_hooks_of_distributed_data_parallel(traces: Traces, tmp_path: Path) -> None:
    current: list[str] = []

    # PyTorch refuses annotations that are not its own.
    def reduce(_state, bucket):  # type: ignore[no-untyped-def]
        current.append(trace.get_current_span().name)  # type: ignore[attr-defined]
        with record_function("in the hook"):
            return (
                torch.distributed.all_reduce(bucket.buffer(), async_op=True)
                .get_future()
                .then(lambda done: done.value()[0])
            )

    with gloo(tmp_path):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model.register_comm_hook(None, reduce)
        for name in ("one", "other"):
            with traces.tracer.start_as_current_span(name):
                model(torch.ones(1, 2)).sum().backward()
    assert current == ["one", "other"]
    for ends in ("in the hook", "gloo:all_reduce"):
        found = Counter(
            path.split("/")[0] for path in traces.all_paths().elements() if path.endswith(ends)
        )
        assert found == {"one": 1, "other": 1}


def test_the_engine_of_backward_passes_is_put_back() -> None:
    variable = torch.autograd.variable.Variable
    theirs = variable._execution_engine
    traces = Traces()
    ours = variable._execution_engine
    assert ours is not theirs
    assert ours.run_backward.__self__ is theirs
    traces.instrumentor.uninstrument()
    assert variable._execution_engine is theirs


def test_an_engine_of_the_programs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = torch.autograd.variable.Variable
    theirs = variable._execution_engine

    class Counting(type(theirs)):  # type: ignore[misc]
        """It knows how often it ran."""

        passes = 0

        def run_backward(self, *arguments: Any, **keywords: Any) -> Any:
            self.passes += 1
            return theirs.run_backward(*arguments, **keywords)

    monkeypatch.setattr(variable, "_execution_engine", Counting())
    traces = Traces()
    with traces.tracer.start_as_current_span("step"):
        torch.ones(2, requires_grad=True).sum().backward()
    passes = variable._execution_engine.passes
    assert traces.all_paths()[f"step/{NODE}SumBackward0"] == 1
    assert passes == 1


METHODS = ("then", "add_done_callback")


def complete(future: Any, value: object = 1) -> None:
    """In another thread."""
    other = threading.Thread(target=future.set_result, args=(value,), name="completing")
    other.start()
    other.join()


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


@pytest.mark.parametrize("method", METHODS)
def test_in_the_span_or_range_of_whoever_asked_for_the_callback(
    traces: Traces, method: str
) -> None:
    waiting = [torch.futures.Future() for _ in range(3)]
    expected = []
    seen = []

    def called_back(_future: Any) -> None:
        torch.cos(traces.x)
        seen.append(current())

    for name, future in zip(("one", "other"), waiting, strict=False):
        with traces.tracer.start_as_current_span(name), record_function("range"):
            getattr(future, method)(called_back)
            expected.append(current())
    getattr(waiting[2], method)(called_back)
    for future in waiting:
        complete(future)
    assert seen == [*expected, 0]
    found = Counter(path for path in traces.all_paths().elements() if path.endswith("aten::cos"))
    assert found == {
        "one/range/aten::cos": 1,
        "other/range/aten::cos": 1,
        "completing/aten::cos": 1,
    }


def test_a_chain_of_callbacks(traces: Traces) -> None:
    future = torch.futures.Future()
    with traces.tracer.start_as_current_span("request"):
        last = future.then(lambda done: torch.cos(done.value())).then(
            lambda done: torch.sin(done.value())
        )
    complete(future, traces.x)
    assert torch.equal(last.wait(), torch.sin(torch.cos(traces.x)))
    paths = traces.all_paths()
    assert [paths["request/aten::cos"], paths["request/aten::sin"]] == [1, 1]


def test_collectives_that_call_back(traces: Traces, tmp_path: Path) -> None:
    """Some of them call back in gloo's thread, some at once."""
    many = torch.ones(100_000)
    with gloo(tmp_path) as distributed:
        for _ in range(50):
            with traces.tracer.start_as_current_span("step"):
                distributed.all_reduce(many, async_op=True).get_future().then(
                    lambda _: torch.cos(traces.x)
                ).wait()
    assert traces.all_paths()["step/aten::cos"] == 50


def test_pytorchs_own_methods_are_put_back() -> None:
    theirs = {method: vars(torch._C.Future)[method] for method in METHODS}
    traces = Traces()
    for method in METHODS:
        assert vars(torch._C.Future)[method] is not theirs[method]
    traces.instrumentor.uninstrument()
    assert {method: vars(torch._C.Future)[method] for method in METHODS} == theirs
