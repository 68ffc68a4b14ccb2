"""CUDA timing and NVTX, with a fake device and, where there is a GPU, with that."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda

from otel_recfn import _native, record_function
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.legacy import (
    EventKind,
    LegacyEvent,
    ProfilerConfig,
    ProfilerError,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
    mark,
)
from otel_recfn.legacy.cuda_callback import NOT_TIMED, nvtx_text
from otel_recfn.model.events import RecordScope

CUDA = ProfilerConfig(ProfilerState.CUDA)
NVTX = ProfilerConfig(ProfilerState.NVTX)


class Tensor:
    """As much of one as counts here."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def operator(name: str, *inputs: object, sequence_nr: int = -1) -> None:
    range_ = RecordFunction(RecordScope.FUNCTION)
    range_.before(name, list(inputs), sequence_nr=sequence_nr)
    range_.end()


def named(events: list[LegacyEvent], name: str) -> tuple[LegacyEvent, LegacyEvent]:
    """Push and pop of a range."""
    (push,) = (event for event in events if event.name == name)
    (pop,) = (event for event in events if event.handle == push.handle and event is not push)
    return push, pop


class TestTiming:
    def test_ranges_are_timed_on_the_gpu(self, cuda: FakeCuda) -> None:
        enable_profiler_legacy(CUDA)
        with record_function("outer"):
            operator("aten::mm")
        (events,) = disable_profiler_legacy()
        outer = named(events, "outer")
        inner = named(events, "aten::mm")
        assert [push.cuda_elapsed_us(pop) for push, pop in (outer, inner)] == [3000.0, 1000.0]
        assert len(cuda.events) == 4

    def test_operators_that_launch_nothing_are_not(self, cuda: FakeCuda) -> None:
        enable_profiler_legacy(CUDA)
        for name in sorted(NOT_TIMED):
            operator(name)
        (events,) = disable_profiler_legacy()
        assert len(NOT_TIMED) == 15
        assert not any(event.has_cuda for event in events)
        assert cuda.events == []

    def test_start_and_stop_are_marks_of_the_cpu_alone(self, cuda: FakeCuda) -> None:
        enable_profiler_legacy(CUDA)
        mark("both")
        mark("cpu", include_cuda=False)
        (events,) = disable_profiler_legacy()
        timed = [(event.name, event.has_cuda) for event in events]
        assert timed == [
            ("__start_profile", False),
            ("both", True),
            ("cpu", False),
            ("__stop_profile", False),
        ]

    def test_without_a_gpu_the_cpu_is_timed(
        self, no_cuda: FakeCuda, caplog: pytest.LogCaptureFixture
    ) -> None:
        enable_profiler_legacy(CUDA)
        operator("aten::mm")
        mark("both")
        (events,) = disable_profiler_legacy()
        assert not any(event.has_cuda for event in events)
        assert "CUDA is not available; ranges are timed on the CPU alone" in caplog.text

    def test_changes_of_memory_have_the_newest_time_of_their_thread(self, cuda: FakeCuda) -> None:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CUDA, profile_memory=True))
        _native.memory(1, "cpu")
        with record_function("outer"):
            _native.memory(2, "cuda:0")
            operator("aten::mm")
            _native.memory(-2, "cuda:0")
        (events,) = disable_profiler_legacy()
        first, second, third = (event for event in events if event.kind == EventKind.MEMORY_ALLOC)
        assert not first.has_cuda
        assert first.device == -1
        push, pop = named(list(events), "outer")
        assert [push.cuda_elapsed_us(event) for event in (second, third, pop)] == [
            0.0,
            2000.0,
            3000.0,
        ]


class TestNvtx:
    def test_ranges_and_marks_are_announced_and_not_recorded(self, cuda: FakeCuda) -> None:
        enable_profiler_legacy(NVTX)
        with record_function("step"):
            mark("half way")
            operator("aten::mm", sequence_nr=3)
        assert disable_profiler_legacy() == []
        assert cuda.calls == [
            "mark __start_profile",
            "push step",
            "mark half way",
            "push aten::mm, seq = 3",
            "pop",
            "pop",
        ]

    def test_without_cuda(self, no_cuda: FakeCuda) -> None:
        with pytest.raises(
            ProfilerError, match="Can't use NVTX profiler - PyTorch has no CUDA here"
        ):
            enable_profiler_legacy(NVTX)


@pytest.mark.parametrize(
    ("sequence_nr", "shapes", "text"),
    [
        (-1, [], "op"),
        (0, [], "op, seq = 0"),
        (7, [[2, 3], []], "op, seq = 7, sizes = [[2, 3], []]"),
        (-1, [[]], "op, sizes = [[]]"),
    ],
)
def test_nvtx_text_is_the_references(sequence_nr: int, shapes: list[list[int]], text: str) -> None:
    assert nvtx_text("op", sequence_nr, shapes) == text


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    x = torch.ones(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    enable_profiler_legacy(CUDA)
    with record_function("products"):
        for _ in range(20):
            x = x @ x
    (events,) = disable_profiler_legacy()
    push, pop = named(events, "products")
    assert push.device == torch.cuda.current_device()
    assert push.cuda_elapsed_us(pop) > 0
