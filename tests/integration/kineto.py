"""torch.profiler, looking at every thread."""

from __future__ import annotations

from typing import Any

import pytest
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile


def profile_of_all_threads(*, shapes: bool = False) -> Any:
    """A torch.profiler of the CPU. Skips where this torch has only profilers of one thread (before 2.7)."""
    try:
        config = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        pytest.skip("this torch.profiler looks at one thread alone")
    return profile(activities=[ProfilerActivity.CPU], record_shapes=shapes, experimental_config=config)
