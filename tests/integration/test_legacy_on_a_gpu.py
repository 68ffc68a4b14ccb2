"""Times on a GPU of the legacy profiler's events, by what PyTorch's own takes them with: here a fake one."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_library import built_with_torch

from otel_recfn.legacy import EventKind, ProfilerConfig, ProfilerState, disable_profiler_legacy, enable_profiler_legacy

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.one_python, pytest.mark.usefixtures("needs_observer")]

SOURCE = Path(__file__).with_name("fake_gpu.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built_with_torch(SOURCE, tmp_path_factory.mktemp("gpu"), "c++17")


@pytest.fixture
def _gpu(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tensors of earlier tests are freed meanwhile, which would be changes of memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gc.collect()
    gc.disable()
    library.install_fake_gpu()
    yield
    library.remove_fake_gpu()
    gc.enable()


def program() -> None:
    x = torch.ones(64, 64)
    (x @ x).add_(1)


def ours(memory: bool = True) -> list[Any]:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CUDA, profile_memory=memory))
    program()
    (events,) = disable_profiler_legacy()
    return [event for event in events if event.kind != EventKind.MARK]


@pytest.mark.usefixtures("_gpu")
def test_each_change_of_memory_has_a_time_of_its_own() -> None:
    timed = [event for event in ours() if event.has_cuda]
    memory = [event for event in timed if event.kind == EventKind.MEMORY_ALLOC]
    assert len(memory) > 2
    assert {event.device for event in timed} == {0}
    for before, after in itertools.pairwise(timed):
        assert before.cuda_elapsed_us(after) == 1.0


@pytest.mark.usefixtures("_gpu")
def test_the_same_events_have_times_as_of_pytorchs_own_profiler() -> None:
    pytest.importorskip("torch.autograd.profiler_legacy", reason="this torch has no legacy profiler any more")
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd import ProfilerConfig as TheirConfig
    from torch.autograd import ProfilerState as TheirState

    torch.autograd._enable_profiler_legacy(
        TheirConfig(TheirState.CUDA, False, True, False, False, False, _ExperimentalConfig())
    )
    program()
    (theirs,) = torch.autograd._disable_profiler_legacy()
    expected = [(event.kind(), event.has_cuda()) for event in theirs if event.kind() != "mark"]
    assert [(event.kind_str, event.has_cuda) for event in ours()] == expected


@pytest.mark.usefixtures("_gpu")
def test_nothing_is_timed_where_memory_is_not_asked_for_or_the_run_is_over(library: ctypes.CDLL) -> None:
    from otel_recfn.pytorch.observer import loaded_library, take_memory_times

    observer = loaded_library()
    assert observer is not None
    assert not any(event.kind == EventKind.MEMORY_ALLOC for event in ours(memory=False))
    ours()
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, profile_memory=True))
    program()
    disable_profiler_legacy()
    assert take_memory_times(observer) == {}
