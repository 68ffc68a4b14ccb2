"""A process that loaded little: a fork of it costs a thirtieth of a fork of a test run that
holds PyTorch.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def in_small_process() -> Iterator[Run]:
    """Calls a function of a test module in such a process, one for all tests of the module; what
    it raises is raised here.
    """
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as processes:
        yield lambda function, *arguments: processes.submit(function, *arguments).result()
