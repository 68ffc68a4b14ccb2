"""CUDA without a GPU, and runs, until the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_cuda import FakeCuda

from otel_recfn.callbacks.registry import clear_thread_local_callbacks
from otel_recfn.callbacks.thread_locals import DebugInfoKind, debug_info_get, debug_info_pop
from otel_recfn.legacy.cuda import register_cuda_methods


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No run goes on after the test."""
    yield
    while debug_info_get(DebugInfoKind.PROFILER_STATE) is not None:
        debug_info_pop(DebugInfoKind.PROFILER_STATE)


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    yield from registered(FakeCuda())


@pytest.fixture
def no_cuda() -> Iterator[FakeCuda]:
    """Registered, but it says that there is no GPU."""
    yield from registered(FakeCuda(enabled=False))


def registered(fake: FakeCuda) -> Iterator[FakeCuda]:
    replaced = register_cuda_methods(fake)
    yield fake
    clear_thread_local_callbacks()  # a run that was disabled without cleanup leaves its own
    register_cuda_methods(replaced)
