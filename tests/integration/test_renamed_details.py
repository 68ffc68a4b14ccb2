"""A PyTorch in which details have other names or are gone: each costs itself, is told, and the
rest is recorded as ever.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from helpers.renamed_torch import RenamedBuilds, log_losses_again
from otel_recfn.callbacks import torch_callbacks
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.pytorch import details, observer, observer_build, profilers
from otel_recfn.pytorch.compilation import Compilations
from otel_recfn.pytorch.launches import METHODS, FutureCallbacks
from otel_recfn.pytorch.modules import ModuleRanges
from otel_recfn.recording.recorder import recorder
from otel_recfn.sources.protocol import Wanted

torch = pytest.importorskip("torch")
from helpers.compiled_forms import VERSION  # noqa: E402

checkpoint = pytest.importorskip("torch.utils.checkpoint")
pytest.importorskip("torch._dynamo.convert_frame")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
Run = Callable[..., subprocess.CompletedProcess[str]]
OPERATORS = {
    "torchscript_stack": ["currentCallstack"],
    "memory": ["reportMemoryUsage"],
    "launches": ["ThreadLocalPythonObjects"],
}
CALLBACKS = {"own_tensors": ["load_pyobj", "_unchecked_untagged_pyobj"]}
"""What is renamed for each detail to be missing."""


def half(names: Mapping[str, object], which: int) -> list[str]:
    return list(names)[which::2]


def told_losses(said: str, table: Mapping[str, details.Detail]) -> set[str]:
    return {name for name in table if details.losses([name], table) in said}


@pytest.fixture(scope="module")
def observers(tmp_path_factory: pytest.TempPathFactory) -> RenamedBuilds:
    """The observer for each half of the details."""
    halves = [
        [word for name in half(OPERATORS, which) for word in OPERATORS[name]] for which in (0, 1)
    ]
    return RenamedBuilds(
        observer_build.TORCH_OBSERVER, halves, tmp_path_factory.mktemp("observers")
    )


@pytest.fixture(scope="module")
def callbacks(tmp_path_factory: pytest.TempPathFactory) -> RenamedBuilds:
    return RenamedBuilds(
        observer_build.TORCH_CALLBACKS,
        list(CALLBACKS.values()),
        tmp_path_factory.mktemp("callbacks"),
    )


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[RenamedBuilds, int], Path]:
    """A library, built with such a PyTorch."""
    tmp_path.chmod(0o700)

    def build(builds: RenamedBuilds, which: int) -> Path:
        monkeypatch.setenv("CXX", builds.command(which))
        monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", str(tmp_path / "cache"))
        return observer_build.build(builds.library)

    return build


@pytest.fixture
def run_with_renamed(
    tmp_path: Path, run_with_torch: Run, built: Callable[[RenamedBuilds, int], Path]
) -> Callable[..., Any]:
    """Runs a program with such a library: what it prints last, as JSON, and its stderr."""

    def run(program: str, builds: RenamedBuilds, which: int) -> tuple[Any, str]:
        built(builds, which)
        done = run_with_torch(
            program, CXX="no compiler", OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache")
        )
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


OBSERVED = """
import json, torch
from otel_recfn import profile
from otel_recfn.model.events import RowKind
from otel_recfn.pytorch import observer

@torch.jit.script
def scripted(x):
    return torch.cos(x)

x = torch.ones(4, 4, requires_grad=True)
with profile(record_shapes=True, with_flops=True, with_stack=True, profile_memory=True) as prof:
    (x @ x).sum().backward()
    torch.cat([x, x])
    torch.conv2d(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1), padding="same")
    scripted(x.detach())
events = prof.events()
of = lambda name: next(event for event in events if event.name == name)
print(json.dumps({
    "features": observer.features(),
    "names": [event.name for event in events],
    "nested": of("aten::mm").parent == of("aten::matmul").event_id,
    "shapes": bool(of("aten::mm").shapes),
    "concrete": of("aten::cat").concrete_inputs,
    "flops": of("aten::mm").flops,
    "forward": of("MmBackward0").forward_thread_id,
    "memory": any(event.nbytes for event in events),
    "scripted": "scripted" in of("aten::cos").stack,
}))
"""


@pytest.mark.parametrize("which", [0, 1])
def test_operators_are_recorded_without_renamed_details(
    run_with_renamed: Callable[..., Any], observers: RenamedBuilds, which: int
) -> None:
    missing = half(OPERATORS, which)
    seen, said = run_with_renamed(OBSERVED, observers, which)
    assert details.found_and_missing(seen["features"]) == (half(OPERATORS, 1 - which), missing)
    assert {"aten::mm", "aten::sum", "MmBackward0", "aten::cat", "aten::cos"} <= {*seen["names"]}
    assert seen["nested"]
    assert (seen["shapes"], seen["concrete"], seen["flops"]) == (True, [None, 0], 2 * 4**3)
    assert seen["forward"] != 0
    assert seen["memory"] == ("memory" not in missing)
    assert seen["scripted"] == ("torchscript_stack" not in missing)
    assert said.count("this PyTorch differs from those that otel-recfn knows") == 1
    assert told_losses(said, details.OPERATORS) == {*missing}


CALLED_BACK = """
import json, torch
from otel_recfn import observing
from otel_recfn.callbacks import torch_callbacks
from otel_recfn.observing import RecordFunctionCallback

seen = {"inputs": [], "outputs": []}
def start(range_):
    if range_.name() == "aten::add":
        values = range_.inputs()
        seen.update(
            inputs=[repr(value) for value in values], same=any(value is x for value in values),
            count=range_.num_inputs(), operator=str(range_.operator_name()),
            schema=str(range_.operator_schema()), scope=range_.scope().name,
            asynchronous=range_.is_async(), needs=range_.needs_outputs(), sequence=range_.seq_nr(),
        )
    return range_.name()

def end(range_, name):
    if name == "aten::add":
        seen["outputs"] = [repr(value) for value in range_.outputs()]

own = []
x = torch.ones(2)
observing.set_record_function_seed_for_testing(7)
callback = RecordFunctionCallback(start, end).needs_inputs(True).needs_outputs(True)
observing.add_global_callback(callback)
local = RecordFunctionCallback(lambda range_: own.append(range_.name()))
observing.add_thread_local_callback(local)
torch.add(x, x, alpha=2)
features = torch_callbacks.load(lambda *_error: True).features()
print(json.dumps({**seen, "features": features, "own": "aten::add" in own}))
"""


def test_callbacks_are_called_without_renamed_details(
    run_with_renamed: Callable[..., Any], callbacks: RenamedBuilds
) -> None:
    seen, said = run_with_renamed(CALLED_BACK, callbacks, 0)
    assert details.found_and_missing(seen["features"]) == ([], [*CALLBACKS])
    assert (seen["scope"], seen["asynchronous"], seen["count"], seen["needs"]) == (
        "FUNCTION",
        False,
        3,
        True,
    )
    assert seen["inputs"] == ["tensor([1., 1.])", "tensor([1., 1.])", "2"]
    assert not seen["same"]  # which needs own_tensors
    assert seen["outputs"] == ["tensor([3., 3.])"]
    assert "aten::add" in seen["operator"]
    assert "alpha" in seen["schema"]
    assert seen["own"]
    assert said.count("this PyTorch differs from those that otel-recfn knows") == 1
    assert told_losses(said, details.CALLBACKS) == {*CALLBACKS}


def test_every_detail_has_a_test_and_a_line_in_the_table() -> None:
    assert {*OPERATORS} == {*details.OPERATORS}
    assert {*CALLBACKS} == {*details.CALLBACKS}


RENAMED_BY_PYTORCH = """
import json, os, torch, torch._dynamo, torch.profiler
from otel_recfn.pytorch import details

if os.environ["RENAMED"] == "yes":
    for name, detail in details.PYTHON.items():
        if details._look_up(detail) is not None:
            known = details.owner_and_name(name)[1]
            newer = detail.what + "_of_a_newer_torch"
            details.PYTHON[name] = detail._replace(what=newer, before=known)

import otel_recfn
from otel_recfn import observing, record_function
from otel_recfn.callbacks.thread_locals import propagated_state

class Notes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with record_function("in the backward"):
            return grad.cos()

layer = torch.nn.Linear(2, 2)
compiled = torch.compile(torch.cos, backend="aot_eager", dynamic=False)
with otel_recfn.profile() as prof, torch.profiler.profile() as theirs:
    with record_function("ours"):
        Notes.apply(layer(torch.ones(1, 2))).sum().backward()
        torch.optim.SGD(layer.parameters()).step()
        compiled(torch.ones(2)), compiled(torch.ones(3))
handle = observing.add_thread_local_callback(observing.RecordFunctionCallback(lambda fn: None))
callbacks = torch.jit.fork(lambda: len(propagated_state().callbacks)).wait()
carried = callbacks, torch._C._is_key_in_tls("otel_recfn")
events = prof.events()
print(json.dumps({
    "names": sorted({event.name for event in events}),
    "attributes": sorted({key for event in events for key in json.loads(event.attributes or "{}")}),
    "parents": sorted({
        (event.name, event.cpu_parent.name if event.cpu_parent else "") for event in events
    }),
    "shown": sorted({event.name for event in theirs.events()} & {"ours", "in the backward"}),
    "carried": carried,
}))
"""


def test_a_detail_with_a_new_name_is_used_as_under_the_old_one(run_with_torch: Run) -> None:
    """One line in the table is enough: the new name, and the known one as that of earlier
    PyTorchs.
    """
    as_known, renamed = (run_with_torch(RENAMED_BY_PYTORCH, RENAMED=word) for word in ("no", "yes"))
    assert "differs" not in renamed.stderr
    seen = json.loads(as_known.stdout.splitlines()[-1])
    assert seen == json.loads(renamed.stdout.splitlines()[-1])
    assert seen["shown"] == ["in the backward", "ours"]
    assert seen["carried"] == [1, True]


Lack = Callable[[str], None]
STOPS_RECOMPUTATION = details.PYTHON["stopped_recomputation"].location[1]


@pytest.fixture
def lack(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Lack]:
    """Takes a detail from PyTorch; after the test, its loss and no other must have been logged,
    once.
    """
    caplog.set_level(logging.WARNING, logger="otel_recfn")
    log_losses_again()
    lacking = []

    def take(name: str) -> None:
        module, path = details.PYTHON[name].location
        *owners, attribute = path.split(".")
        monkeypatch.delattr(reduce(getattr, owners, sys.modules[module]), attribute)
        lacking.append(name)

    yield take
    messages = [record.getMessage() for record in caplog.get_records("call")]
    assert len(messages) == len(lacking)
    assert all(
        details.losses([name], details.PYTHON) in line
        for name, line in zip(lacking, messages, strict=True)
    )
    log_losses_again()


class Broken(torch.nn.Module):
    def forward(self, _x: Any) -> Any:
        raise ValueError("broken")


def recorded() -> list[tuple[str, str]]:
    """Names and errors of what a module call, a step and a module that raises are recorded as."""
    ranges = ModuleRanges()
    recorder.start(ALL_SCOPES_MASK, 1 << 20)
    ranges.enable(Wanted())
    try:
        layer = torch.nn.Linear(1, 1)
        layer(torch.ones(1)).backward()
        torch.optim.SGD(layer.parameters()).step()
        with suppress(ValueError):
            Broken()(torch.ones(1))
        return [
            (event.name.removeprefix("nn.Module: "), event.error)
            for event in recorder.drain(close_open=False).events()
        ]
    finally:
        ranges.disable()
        recorder.stop()


MODULE = ("Linear_0", "")
BROKEN = ("Broken_0", "ValueError: broken")


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ([], [MODULE, BROKEN]),
        (["module_call"], []),
        (["step_hook"], [MODULE, BROKEN]),
        (["is_compiling"], []),
        (["is_tracing"], [MODULE, BROKEN]),
        (["graph_task"], [MODULE, BROKEN]),
    ],
)
def test_modules_and_steps(lack: Lack, missing: list[str], left: list[tuple[str, str]]) -> None:
    for name in missing:
        lack(name)
    assert recorded() == left


COMPILATION: dict[str, set[str]] = {
    "frame_observer": set(),
    "compile_frame": {"frames", "modules of PyTorch's", "reasons", "breaks", "fallbacks"},
    "compile_phase": {"phases", "backward", "its id"},
    "compile_id": {"its id"},
    "compile_counters": {"breaks"},
    "recompile_reasons": {"reasons"},
    "graph_break": {"fallbacks"},
    "frame_around": {"modules of PyTorch's"},
    "profiler_runs": {"phases once"},
}
"""What is not seen without each."""


def breaks(x: Any) -> Any:
    print("a break")
    return x + 1


def breaks_in_a_loop(x: Any) -> Any:
    for _ in range(2):
        with torch.no_grad():
            print("a break")
    return x


def compilation_names() -> set[str]:
    """What is seen of two functions that are compiled, one of them twice and under
    torch.profiler, and a backward graph.
    """
    torch._dynamo.reset()
    source = Compilations()
    recorder.start(ALL_SCOPES_MASK, 1 << 22)
    source.enable(Wanted())
    try:
        run = torch.compile(breaks, backend="aot_eager", dynamic=False)
        run(torch.ones(2, requires_grad=True)).sum().backward()
        run(torch.ones(3))
        torch.compile(breaks_in_a_loop, backend="eager")(torch.ones(2))
        torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager")(torch.ones(2))
        first = list(recorder.drain().events())
        with torch.profiler.profile():
            torch.compile(lambda x: x, backend="eager")(torch.ones(4))
        phases = [event for event in recorder.drain().events() if "compile_attempt" in event.name]
    finally:
        source.disable()
        recorder.stop()
    compilations = [event for event in first if event.name.startswith("torch.compile: ")]
    texts = [event.attributes for event in compilations]
    seen = {
        "frames": any(event.name.endswith("breaks") for event in compilations),
        "backward": any(event.name.endswith("backward") for event in compilations),
        "modules of PyTorch's": any(event.name.endswith("Sequential") for event in compilations),
        "phases": any("compile_attempt" in event.name for event in first),
        # Torch.profiler's own are announced by the observer, which isn't there.
        "phases once": not phases,
        "its id": any(
            event.name.endswith("backward") and "recfn.compile.id" in event.attributes
            for event in compilations
        ),
        "reasons": any("recfn.compile.reason" in text for text in texts),
        "breaks": any("recfn.compile.graph_breaks" in text for text in texts),
        "fallbacks": any("recfn.compile.fallback" in text for text in texts),
    }
    return {name for name, is_seen in seen.items() if is_seen}


@pytest.fixture(scope="module")
def seen_with_all() -> set[str]:
    """What is seen where nothing is missing."""
    return compilation_names()


@pytest.mark.skipif(VERSION < (2, 13), reason="this PyTorch announces phases itself")
@pytest.mark.parametrize("missing", COMPILATION)
def test_compilations(
    seen_with_all: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: str,
) -> None:
    log_losses_again()
    detail = details.PYTHON[missing]
    monkeypatch.setitem(
        details.PYTHON, missing, detail._replace(what=f"{detail.what}_of_another_torch", before="")
    )
    caplog.clear()
    assert seen_with_all - compilation_names() == COMPILATION[missing]
    messages = [record.getMessage() for record in caplog.records if record.name == "otel_recfn"]
    assert [detail.lost in line for line in messages if "differs" in line] == [True]
    log_losses_again()


@pytest.mark.parametrize("name", ["profiler_start", "legacy_profiler_start"])
def test_memory_between_operators(lack: Lack, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(observer, "loaded_library", object)
    monkeypatch.setattr(observer, "keep_memory", kept.append)
    profilers.keep_memory("owner")
    profilers.release_memory("owner")
    lack(name)
    profilers.keep_memory("owner")
    assert kept == [True, False]


@pytest.mark.parametrize("method", METHODS)
def test_callbacks_of_futures(lack: Lack, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    future = torch._C.Future
    called_back = FutureCallbacks()
    theirs = dict(vars(future))
    monkeypatch.delattr(future, method)
    called_back.watch()
    assert {name for name, found in vars(future).items() if found is not theirs[name]} == {
        "then",
        "add_done_callback",
    } - {method}
    called_back.leave()
    lack("future")
    FutureCallbacks().watch()


def test_schemas(lack: Lack) -> None:
    text = "aten::relu(Tensor self) -> Tensor"
    assert torch_callbacks._schema(text).name == "aten::relu"
    lack("parse_schema")
    assert torch_callbacks._schema(text) == text


def test_this_torch_has_all() -> None:
    assert details.missing_in_python() == []
    assert issubclass(getattr(checkpoint, STOPS_RECOMPUTATION), Exception)


def test_what_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "is_compiling")
    monkeypatch.delattr(checkpoint, STOPS_RECOMPUTATION)
    assert details.missing_in_python() == ["is_compiling", "stopped_recomputation"]
