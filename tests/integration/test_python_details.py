"""A PyTorch whose Python part lacks a detail: it costs that detail alone, and one line says what is lost."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from typing import Any

import pytest

from otel_recfn.callbacks import torch_callbacks
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.pytorch import details
from otel_recfn.pytorch.launches import METHODS, FutureCallbacks
from otel_recfn.pytorch.modules import ModuleRanges
from otel_recfn.pytorch.thread_memory import ProfilerStarts
from otel_recfn.recording.recorder import recorder
from otel_recfn.sources.protocol import Wanted

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint")

pytestmark = pytest.mark.torch

Lack = Callable[[str], None]
STOPS_RECOMPUTATION = details.PYTHON["stopped_recomputation"].place[1]


@pytest.fixture
def lack(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Lack]:
    """Takes a detail from PyTorch; after the test, its loss and no other must have been logged, once."""
    caplog.set_level(logging.WARNING, logger="otel_recfn")
    details._tell_once.cache_clear()
    lacking = []

    def take(name: str) -> None:
        module, path = details.PYTHON[name].place
        *owners, attribute = path.split(".")
        monkeypatch.delattr(reduce(getattr, owners, sys.modules[module]), attribute)
        lacking.append(name)

    yield take
    told = [record.getMessage() for record in caplog.get_records("call")]
    assert len(told) == len(lacking)
    assert all(details.losses([name], details.PYTHON) in line for name, line in zip(lacking, told, strict=True))
    details._tell_once.cache_clear()


class Broken(torch.nn.Module):
    def forward(self, _x: Any) -> Any:
        raise ValueError("broken")


def recorded() -> list[tuple[str, str]]:
    """Names and errors of what a module call, a step and a module that raises are recorded as."""
    ranges = ModuleRanges(recorder, lambda: False)
    recorder.start(ALL_SCOPES_MASK, 1 << 20)
    ranges.enable(Wanted())
    try:
        layer = torch.nn.Linear(1, 1)
        layer(torch.ones(1)).backward()
        torch.optim.SGD(layer.parameters()).step()
        with suppress(ValueError):
            Broken()(torch.ones(1))
        return [(event.name.removeprefix("nn.Module: "), event.error) for event in recorder.drain(close_open=False).events()]
    finally:
        ranges.disable()
        recorder.stop()


MODULE, STEP, BROKEN = ("Linear_0", ""), ("Optimizer.step#SGD.step", ""), ("Broken_0", "ValueError: broken")


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ([], [MODULE, STEP, BROKEN]),
        (["module_call"], [STEP]),
        (["frame_observer"], [MODULE, STEP, BROKEN]),
        (["step_pre_hook"], [MODULE, BROKEN]),
        (["step_hook"], [MODULE, BROKEN]),
        (["is_compiling"], []),
        (["is_tracing"], [MODULE, STEP, BROKEN]),
    ],
)
def test_modules_and_steps(lack: Lack, missing: list[str], left: list[tuple[str, str]]) -> None:
    for name in missing:
        lack(name)
    assert recorded() == left


@pytest.mark.parametrize("name", ["profiler_start", "legacy_profiler_start"])
def test_memory_between_operators(lack: Lack, name: str) -> None:
    starts = ProfilerStarts(lambda: None)
    assert starts.watch()
    starts.unwatch()
    lack(name)
    assert not starts.watch()


@pytest.mark.parametrize("method", METHODS)
def test_callbacks_of_futures(lack: Lack, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    future, called_back = torch._C.Future, FutureCallbacks()
    theirs = dict(vars(future))
    monkeypatch.delattr(future, method)
    called_back.watch()
    assert {name for name, found in vars(future).items() if found is not theirs[name]} == {"then", "add_done_callback"} - {
        method
    }
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
