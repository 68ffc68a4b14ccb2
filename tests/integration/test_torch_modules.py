"""Ranges of modules and optimizers, from programs as people write them."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import traceback
import tracemalloc
import warnings
from typing import Any

import pytest
from recorded_modules import Recording, X

from otel_recfn import profile, record_function
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import ALL_SCOPES_MASK, RecordScope
from otel_recfn.pytorch import called_objects, modules
from otel_recfn.sources.protocol import Wanted
from otel_recfn.support import weak_identity
from otel_recfn.support.code_text import called_code

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x))


def hooks() -> tuple[int, ...]:
    modules, optimizers = sys.modules["torch.nn.modules.module"], sys.modules["torch.optim.optimizer"]
    return (
        len(modules._global_forward_pre_hooks),
        len(modules._global_forward_hooks),
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
    )


def test_names_paths_and_nesting(recording: Recording) -> None:
    net = Net()
    expected = [
        ("Net_0", ""),
        ("  Linear_0", "first"),
        ("  Sequential_0", "rest"),
        ("    Linear_1", "rest.0"),
        ("    ReLU_0", "rest.1"),
    ]
    for _ in range(2):
        net(X)
        assert recording.lines() == expected
    net.rest(X)
    assert recording.lines() == [("Sequential_0", ""), ("  Linear_1", "0"), ("  ReLU_0", "1")]


def test_what_an_event_says(recording: Recording) -> None:
    nn.ReLU()(X)
    (event,) = recording.events()
    assert (event.name, event.scope, event.source) == ("nn.Module: ReLU_0", RecordScope.USER_SCOPE, EventSource.MODULE)
    assert (event.flags, event.error) == (EventFlag.NONE, "")


def test_a_call_says_which_code_it_runs(recording: Recording) -> None:
    class Written(nn.Module):
        @torch.no_grad()
        def forward(self, x: Any) -> Any:
            return x

    class Inherited(Written):
        pass

    class Overridden(Written):
        def __init__(self) -> None:
            super().__init__()
            self.forward = other

    def other(x: Any) -> Any:
        return x

    for module in (Written(), Written(), Inherited(), Overridden(), nn.ReLU()):
        module(X)
    codes = [called_code(event.code) for event in recording.events()]
    here = f"{__name__}.test_a_call_says_which_code_it_runs.<locals>."
    written, overridden = f"{here}Written.forward", f"{here}other"
    relu = "torch.nn.modules.activation.ReLU.forward"
    assert [code.function for code in codes] == [written, written, written, overridden, relu]
    assert {code.file for code in codes[:4]} == {__file__}
    assert codes[3].line == other.__code__.co_firstlineno
    assert recording.codes_kept() == 3


def test_modules_with_a_forward_of_another_kind(recording: Recording) -> None:
    class Silent(nn.Module):
        forward = len

    Silent()("four")
    torch.jit.trace(nn.ReLU(), X)
    torch.jit.script(nn.ReLU())(X)
    assert {event.code for event in recording.events() if event.name.startswith("nn.Module: Silent")} == {""}


def test_made_in_forward_one_name_for_all_steps(recording: Recording) -> None:
    class Fresh(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return nn.Softmax(dim=-1)(x)

    net = Fresh()
    for _ in range(100):
        net(X)
    assert {event.name for event in recording.events()} == {"nn.Module: Fresh_0", "nn.Module: Softmax_0"}


def test_modules_and_threads_that_are_gone_leave_nothing(recording: Recording) -> None:
    def work() -> None:
        nn.ReLU()(X)

    def after_threads(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert len(recording.events()) == count
        gc.collect()
        ours = [tracemalloc.Filter(True, module.__file__) for module in (modules, called_objects, weak_identity)]
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)

    tracemalloc.start()
    try:
        before = after_threads(20)
        numbers = 1000 * 28  # of threads: the recorder keeps the names of the newest 4,096
        assert after_threads(1000) - before < numbers + 8000
    finally:
        tracemalloc.stop()


def test_living_instances_never_share_a_name(recording: Recording) -> None:
    modules = [nn.ReLU() for _ in range(50)]
    for module in modules:
        module(X)
    del modules[::2]
    modules += [nn.ReLU() for _ in range(50)]
    for module in modules:
        module(X)
    names = [event.name for event in recording.events()]
    assert len(set(names[-75:])) == 75
    assert len(set(names)) == 75


def test_modules_that_are_equal_and_unhashable(recording: Recording) -> None:
    class Equal(nn.ReLU):  # type: ignore[misc, name-defined]
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, _other: object) -> bool:
            return True

    first, second = Equal(), Equal()
    first(X)
    second(X)
    nn.Sequential(first)(X)
    assert {event.name for event in recording.events()} >= {"nn.Module: Equal_0", "nn.Module: Equal_1"}


def test_a_submodule_that_is_added_later_has_its_path(recording: Recording) -> None:
    net = nn.Sequential(nn.ReLU())
    net(X)
    net.append(nn.Tanh())
    net(X)
    assert recording.lines()[-1] == ("  Tanh_0", "1")


def test_copies_and_pickles_know_nothing_of_us(recording: Recording) -> None:
    net = Net()
    net(X)
    before = recording.lines()
    assert set(vars(net)) == set(vars(Net()))
    copied, loaded = copy.deepcopy(net), pickle.loads(pickle.dumps(nn.Linear(3, 3)))
    copied(X)
    loaded(X)
    lines = recording.lines()
    assert [line[1] for line in lines[:-1]] == [line[1] for line in before]
    assert lines[0][0] == "Net_1"


def train(optimizer: Any, net: Any) -> None:
    optimizer.zero_grad()
    net(X).sum().backward()
    optimizer.step()


def test_an_optimizer(recording: Recording) -> None:
    net = nn.Linear(3, 1)
    train(torch.optim.SGD(net.parameters(), lr=0.1), net)
    assert recording.lines() == [("Linear_0", ""), ("Optimizer.step#SGD.step", "")]
    recording.torch_announces_optimizer = True
    train(torch.optim.SGD(net.parameters(), lr=0.1), net)
    assert recording.lines() == [("Linear_0", "")]


def test_a_step_of_an_optimizer_says_which_code_it_runs(recording: Recording) -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    weight = nn.Parameter(torch.ones(2))
    optimizers = [torch.optim.SGD([weight]), torch.optim.RMSprop([weight]), Own([weight])]
    torch.optim.lr_scheduler.StepLR(optimizers[0], 1)  # it wraps the method
    expected = [
        "torch.optim.sgd.SGD.step",
        "torch.optim.rmsprop.RMSprop.step",
        f"{__name__}.{Own.step.__wrapped__.__qualname__}",
    ]
    for optimizer in optimizers:
        optimizer.step()
    steps = [event for event in recording.events() if event.name.startswith("Optimizer.step#")]
    assert [called_code(event.code).function for event in steps if not event.parent] == expected


@pytest.mark.one_python
def test_pytorchs_own_range_of_a_step_says_so_too() -> None:
    weight = nn.Parameter(torch.ones(2))
    with profile(modules=True) as observed:
        with record_function("around"):
            torch.optim.SGD([weight]).step()
        torch.ones(2)
    found = {event.name: called_code(event.code).function for event in observed.events() if event.code}
    assert found == {"Optimizer.step#SGD.step": "torch.optim.sgd.SGD.step"}


def test_an_optimizer_whose_step_calls_the_model(recording: Recording) -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(X).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert recording.lines() == [("Optimizer.step#LBFGS.step", ""), ("  Linear_0", "")]


def test_install_and_remove(recording: Recording) -> None:
    ours, filters, call = hooks(), list(warnings.filters), vars(nn.Module)["__call__"]
    recording.ranges.enable(Wanted())
    assert hooks() == ours
    recording.ranges.disable()
    recording.ranges.disable()
    assert hooks() == (*ours[:2], ours[2] - 1, ours[3] - 1)
    nn.ReLU()(X)
    assert recording.events() == []
    recording.ranges.enable(Wanted())
    nn.ReLU()(X)
    assert [event.name for event in recording.events()] == ["nn.Module: ReLU_0"]
    assert (ours[:2], warnings.filters, vars(nn.Module)["__call__"]) == ((0, 0), filters, call)


def test_the_program_sees_no_frame_of_ours(recording: Recording) -> None:
    class Looks(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            stacks.append([frame.name for frame in traceback.extract_stack()])
            warnings.warn("of the caller's line", stacklevel=4)
            return x

    stacks: list[list[str]] = []
    module = nn.Sequential(Looks())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module(X)
        recording.ranges.disable()
        module(X)
    assert [event.name for event in recording.events()] == ["nn.Module: Sequential_0", "nn.Module: Looks_0"]
    assert stacks[0] == stacks[1]
    assert [(one.filename, one.lineno) for one in warned[:1]] == [(one.filename, one.lineno) for one in warned[1:]]


def test_removed_in_the_middle_of_a_call(recording: Recording) -> None:
    class Removes(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            recording.ranges.disable()
            recording.ranges.enable(Wanted())
            return x

    nn.Sequential(Removes(), nn.ReLU())(X)
    assert recording.lines() == [("Sequential_0", ""), ("  Removes_0", "0"), ("  ReLU_0", "1")]


def test_removed_for_good_in_the_middle_of_a_call(recording: Recording) -> None:
    class Removes(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            recording.ranges.disable()
            return x

    nn.Sequential(Removes(), nn.ReLU())(X)
    assert recording.lines() == [("Sequential_0", ""), ("  Removes_0", "0")]


def test_while_another_switches_the_method(recording: Recording) -> None:
    """As torch.fx does it while it traces: it puts back what it found."""
    found = nn.Module.__call__

    def patched(module: Any, *arguments: Any) -> Any:
        return found(module, *arguments)

    nn.Module.__call__ = patched  # type: ignore[method-assign]
    try:
        recording.ranges.disable()
        recording.ranges.enable(Wanted())
        nn.ReLU()(X)
    finally:
        nn.Module.__call__ = found  # type: ignore[method-assign]
    nn.ReLU()(X)
    torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    recording.events()
    nn.Tanh()(X)
    assert [event.name for event in recording.events()] == ["nn.Module: Tanh_0"]


def test_installed_in_the_middle_of_a_call() -> None:
    recording = Recording()
    recording.ranges.disable()

    class Installs(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            recording.ranges.enable(Wanted())
            return x

    nn.Sequential(Installs(), nn.ReLU())(X)
    recording.ranges.disable()
    assert recording.lines() == [("ReLU_0", "")]


def test_nothing_while_the_recorder_does_not_record(recording: Recording) -> None:
    recording.recorder.stop()
    earlier, later = Net(), Net()
    earlier(X)
    assert recording.events() == []
    recording.recorder.start(ALL_SCOPES_MASK, 1 << 20)
    later(X)
    earlier(X)
    assert [event.name for event in recording.events() if "Net" in event.name] == ["nn.Module: Net_0", "nn.Module: Net_1"]


def test_threads_do_not_mix(recording: Recording) -> None:
    def work() -> None:
        net = Net()
        for _ in range(20):
            net(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = recording.events()
    by_id = {event.event_id: event for event in events}
    assert len(events) == 4 * 20 * 5
    assert all(event.parent == 0 or by_id[event.parent].thread == event.thread for event in events)


@pytest.mark.skipif(torch.__version__ < "2.5", reason="PyTorch 2.4 calls modules, and their hooks, while it compiles them")
def test_compiled_modules_have_no_break_and_no_warning(recording: Recording) -> None:
    def step(net: Any, x: Any) -> Any:
        return net(x) + 1

    net = Net()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        for _ in range(3):
            assert torch.equal(compiled(X), net(X))
        whole = torch.compile(step, backend="eager", fullgraph=True)
        recording.events()
        whole(net, X)
    assert recording.events() == []
    assert torch._dynamo.utils.counters["graph_break"] == {}
    torch._dynamo.reset()


def test_export_and_tracing_see_nothing(recording: Recording) -> None:
    net = Net()
    exported = torch.export.export(net, (X,), strict=False)
    assert recording.events() == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        traced = torch.jit.trace(net, (X,), check_trace=False)
        assert recording.events() == []
        scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert "recfn" not in str(exported.graph) + str(traced.graph)
    scripted(X)
    assert [event.name for event in recording.events()] == ["nn.Module: RecursiveScriptModule_0"]
