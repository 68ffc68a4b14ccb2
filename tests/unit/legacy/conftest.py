"""CUDA without a GPU, until the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_cuda import FakeCuda
from otel_recfn.legacy.cuda import register_cuda_methods


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
    register_cuda_methods(replaced)
