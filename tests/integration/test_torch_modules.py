"""Ranges of modules and optimizers, from programs as people write them, also where these raise."""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from typing import Any

import pytest

from helpers.forked_work import in_child
from helpers.recorded_modules import Recording, X
from otel_recfn import _native  # to have a begin fail
from otel_recfn.model.events import ALL_SCOPES_MASK, EventFlag
from otel_recfn.sources.protocol import Wanted
from otel_recfn.support.code_names import called_code

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
    modules = sys.modules["torch.nn.modules.module"]
    optimizers = sys.modules["torch.optim.optimizer"]
    return (
        len(modules._global_forward_pre_hooks),
        len(modules._global_forward_hooks),
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
    written = f"{here}Written.forward"
    overridden = f"{here}other"
    relu = "torch.nn.modules.activation.ReLU.forward"
    assert [code.function for code in codes] == [written, written, written, overridden, relu]
    assert {code.file for code in codes[:4]} == {__file__}
    assert codes[3].line == other.__code__.co_firstlineno


def test_made_in_forward_one_name_for_all_steps(recording: Recording) -> None:
    class Fresh(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return nn.Softmax(dim=-1)(x)

    net = Fresh()
    for _ in range(100):
        net(X)
    assert {event.name for event in recording.events()} == {
        "nn.Module: Fresh_0",
        "nn.Module: Softmax_0",
    }


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


def train(optimizer: Any, net: Any) -> None:
    optimizer.zero_grad()
    net(X).sum().backward()
    optimizer.step()


def test_an_optimizer_has_pytorchs_own_range_alone(recording: Recording) -> None:
    net = nn.Linear(3, 1)
    train(torch.optim.SGD(net.parameters(), lr=0.1), net)
    assert recording.lines() == [("Linear_0", "")]


def test_install_and_remove(recording: Recording) -> None:
    ours = hooks()
    filters = list(warnings.filters)
    call = vars(nn.Module)["__call__"]
    recording.ranges.enable(Wanted())
    assert hooks() == ours
    recording.ranges.disable()
    recording.ranges.disable()
    assert hooks() == (*ours[:2], ours[2] - 1)
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
    assert [event.name for event in recording.events()] == [
        "nn.Module: Sequential_0",
        "nn.Module: Looks_0",
    ]
    assert stacks[0] == stacks[1]
    assert [(one.filename, one.lineno) for one in warned[:1]] == [
        (one.filename, one.lineno) for one in warned[1:]
    ]


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


class Raises(nn.Module):  # type: ignore[misc, name-defined]
    """Calls a layer, then raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        self.layer(x)
        raise self.error


class Catches(nn.Module):  # type: ignore[misc, name-defined]
    """Calls a module that raises, then another."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner = Raises(error)
        self.after = nn.ReLU()

    def forward(self, x: Any) -> Any:
        try:
            self.inner(x)
        except BaseException:
            pass
        return self.after(x)


def test_called_while_an_exception_is_handled(recording: Recording) -> None:
    try:
        raise KeyError("before")
    except KeyError:
        nn.ReLU()(X)
    assert [event.error for event in recording.events()] == [""]


def test_calls_of_greenlets_that_switch_in_them(recording: Recording) -> None:
    greenlet = pytest.importorskip("greenlet")
    program = greenlet.getcurrent()

    class Switches(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return program.switch() or x

    calling = [greenlet.greenlet(Switches()) for _ in range(2)]
    for each in calling:
        each.switch(X)
    Net()(X)
    for each in calling:
        each.switch()
        Net()(X)
    # Those that no other module makes.
    outermost = [event for event in recording.events() if event.attributes]
    assert len(outermost) == 5
    assert all(
        json.loads(event.attributes) == {"recfn.input_shapes": ["[2, 3]"]} for event in outermost
    )


def test_a_child_that_is_forked_in_a_call_has_calls_of_its_own(recording: Recording) -> None:
    def check() -> None:
        recording.recorder.start(ALL_SCOPES_MASK, 1 << 20)
        Net()(X)
        assert recording.events()[0].attributes

    class Forks(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            in_child(check)
            return x

    Forks()(X)


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()]
)
def test_a_module_that_raises_and_another_after_it(
    recording: Recording, error: BaseException
) -> None:
    Catches(error)(X)
    outer, inner, layer, after = recording.events()
    assert [event.parent for event in (inner, layer, after)] == [
        outer.event_id,
        inner.event_id,
        outer.event_id,
    ]
    failed = not isinstance(error, GeneratorExit)  # which is no failure
    assert [bool(event.error) for event in (outer, inner, layer, after)] == [
        False,
        failed,
        False,
        False,
    ]
    assert [bool(event.flags & EventFlag.ERROR) for event in (outer, inner)] == [False, failed]
    assert inner.end_ns <= after.start_ns


def test_a_hook_that_fails_takes_itself_away(
    recording: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("recorder")

    # Nothing in the recorder raises by itself.
    monkeypatch.setattr(_native, "begin", broken)
    with caplog.at_level(logging.ERROR, logger="otel_recfn"):
        assert torch.equal(nn.Sequential(nn.ReLU(), nn.ReLU())(X), X)
    assert caplog.text.count("a module hook of otel-recfn failed") == 1
    assert not recording.ranges.announces_now()
