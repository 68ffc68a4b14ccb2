"""Runs of programs with all outputs at once, each of which all tests of outputs look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Runs a program in a way, once for all tests."""
    from outputs import WAYS, outputs_of  # with PyTorch alone
    from torch.utils.data import _utils

    @cache
    def recorded(program: Any, way: str = "defaults") -> Any:
        return outputs_of(program, WAYS[way], tmp_path_factory.mktemp("outputs"))

    with pytest.MonkeyPatch.context() as patched:
        # A worker that takes longer for its end is killed.
        patched.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", PATIENCE_S)
        yield recorded
