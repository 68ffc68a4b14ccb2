"""Modules and optimizers that raise, or are interrupted: their ranges end, and the program gets what it would get."""

from __future__ import annotations

import concurrent.futures
import logging
import signal
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from recorded_modules import Recording, X

from otel_recfn.model.events import EventFlag
from otel_recfn.pytorch import modules as torch_modules
from otel_recfn.sources.protocol import Wanted

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn


class Raises(nn.Module):  # type: ignore[misc, name-defined]
    """Calls a layer, then raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error, self.layer = error, nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        self.layer(x)
        raise self.error


class Catches(nn.Module):  # type: ignore[misc, name-defined]
    """Calls a module that raises, then another."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner, self.after = Raises(error), nn.ReLU()

    def forward(self, x: Any) -> Any:
        try:
            self.inner(x)
        except BaseException:
            pass
        return self.after(x)


def test_a_module_that_raises(recording: Recording) -> None:
    with pytest.raises(ValueError, match="no"):
        Raises(ValueError("no"))(X)
    outer, layer = recording.events()
    assert (outer.error, outer.flags) == ("ValueError: no", EventFlag.ERROR)
    assert layer.error == ""


def test_called_while_an_exception_is_handled(recording: Recording) -> None:
    try:
        raise KeyError("before")
    except KeyError:
        nn.ReLU()(X)
    assert [event.error for event in recording.events()] == [""]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_a_module_that_raises_and_another_after_it(recording: Recording, error: BaseException) -> None:
    Catches(error)(X)
    outer, inner, layer, after = recording.events()
    assert [event.parent for event in (inner, layer, after)] == [outer.event_id, inner.event_id, outer.event_id]
    failed = not isinstance(error, GeneratorExit)  # which is no failure
    assert [bool(event.error) for event in (outer, inner, layer, after)] == [False, failed, False, False]
    assert inner.end_ns <= after.start_ns


def test_an_interrupt_ends_the_calls_that_it_leaves(recording: Recording) -> None:
    """Ctrl-C in a notebook, then the next cell."""
    interrupted = nn.Sequential(nn.Sequential(Raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        interrupted(X)
    assert [event.error for event in recording.events()] == ["KeyboardInterrupt"] * 3 + [""]
    nn.ReLU()(X)
    (after,) = recording.events()
    assert (after.name, after.parent) == ("nn.Module: ReLU_0", 0)


def test_a_recursive_module_that_is_interrupted_inside_itself(recording: Recording) -> None:
    class Recursive(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, depth: int) -> Any:
            if depth == 0:
                raise KeyboardInterrupt
            try:
                return self(x, depth - 1)
            except KeyboardInterrupt:
                if depth == 1:
                    raise
                return x

    Recursive()(X, 2)
    outer, *inner = recording.events()
    assert outer.error == ""
    assert [event.error for event in inner] == ["KeyboardInterrupt"] * 2


def test_frames_are_let_go(recording: Recording) -> None:
    class Big:
        pass

    alive: list[Any] = []

    class Holds(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, _big: Big, fails: bool) -> None:
            if fails:
                raise ValueError

    for fails in (False, True):
        big = Big()
        alive.append(weakref.ref(big))
        try:
            Holds()(big, fails)
        except ValueError:
            pass
        del big
    assert [reference() for reference in alive] == [None, None]


def test_hooks_of_the_user_that_raise(recording: Recording) -> None:
    def fail(*_: object) -> None:
        raise ValueError("hook")

    for register in ("register_forward_pre_hook", "register_forward_hook"):
        module = nn.ReLU()
        getattr(module, register)(fail)
        with pytest.raises(ValueError, match="hook"):
            nn.Sequential(module)(X)
    nn.ReLU()(X)
    roots = [event for event in recording.events() if event.parent == 0]
    assert [event.name for event in roots] == ["nn.Module: Sequential_0", "nn.Module: Sequential_0", "nn.Module: ReLU_1"]


def test_an_optimizer_that_raises(recording: Recording) -> None:
    class Broken(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Callable[[], float] | None = None) -> None:
            raise ValueError("step")

    class Trains(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            with pytest.raises(ValueError, match="step"):
                Broken([nn.Parameter(torch.ones(1))], lr=0.1).step()
            return x

    Trains()(X)
    outer, step = recording.events()
    assert (step.name, step.error, outer.error) == ("Optimizer.step#Broken.step", torch_modules.LEFT_UNSEEN, "")


def test_a_hook_that_fails_takes_itself_away(
    recording: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("recorder")

    monkeypatch.setattr(recording.recorder, "begin", broken)
    with caplog.at_level(logging.ERROR, logger="otel_recfn"):
        assert torch.equal(nn.Sequential(nn.ReLU(), nn.ReLU())(X), X)
    assert caplog.text.count("a module hook of otel-recfn failed") == 1
    assert not recording.ranges.announces_now()


def test_a_hook_that_failed_is_not_set_again_when_another_capture_begins(
    recording: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("recorder")

    monkeypatch.setattr(recording.recorder, "begin", broken)
    with caplog.at_level(logging.ERROR, logger="otel_recfn"):
        nn.ReLU()(X)
        recording.ranges.enable(Wanted())
        nn.ReLU()(X)
    assert caplog.text.count("a module hook of otel-recfn failed") == 1


@pytest.mark.parametrize("error", [StopIteration(), StopAsyncIteration(), concurrent.futures.CancelledError()], ids=repr)
def test_a_module_that_is_left_by_control_flow_has_not_failed(recording: Recording, error: BaseException) -> None:
    Catches(error)(X)
    assert [(event.error, event.flags) for event in recording.events()] == [("", 0)] * 4


def test_what_a_signal_handler_raises_in_a_hook_goes_to_the_program(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(_number: int, _frame: object) -> None:
        raise TimeoutError("time is up")

    before = signal.signal(signal.SIGALRM, handle)
    begin = recording.recorder.begin
    try:
        monkeypatch.setattr(recording.recorder, "begin", lambda *_args, **_keywords: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(TimeoutError, match="time is up"):
            nn.ReLU()(X)
    finally:
        signal.signal(signal.SIGALRM, before)
    monkeypatch.setattr(recording.recorder, "begin", begin)
    nn.ReLU()(X)
    assert [event.name.split("_")[0] for event in recording.events()] == ["nn.Module: ReLU"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_signal_handler_raises_at_the_end_of_a_call_goes_to_the_program(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def handle(_number: int, _frame: object) -> None:
        raise TimeoutError("time is up")

    end, first = recording.recorder.end, iter([True])

    def interrupted(*arguments: Any, **keywords: Any) -> None:
        if next(first, False):
            signal.raise_signal(signal.SIGALRM)
        end(*arguments, **keywords)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        monkeypatch.setattr(recording.recorder, "end", interrupted)
        with pytest.raises(TimeoutError, match="time is up"):
            (Raises(ValueError("no")) if fails else nn.ReLU())(X)
    finally:
        signal.signal(signal.SIGALRM, before)
    nn.Tanh()(X)
    events = recording.events()
    assert [event.parent for event in events if "Tanh" in event.name] == [0]
    assert len(events) == 2 + fails
