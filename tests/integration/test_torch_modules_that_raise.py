"""Modules and optimizers that raise, or are interrupted: their ranges end, and the program gets what it would get."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from recorded_modules import Recording, X

from otel_recfn.model.events import EventFlag
from otel_recfn.pytorch import modules as torch_modules

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
