"""torch.profiler, looking at every thread."""

from __future__ import annotations

from typing import Any

import pytest
from torch._C._autograd import _KinetoEvent
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile


def all_threads_profile(*, shapes: bool = False) -> Any:
    """A torch.profiler of the CPU.

    Skips where this torch's looks at one thread alone, or tells no shapes of lists.
    """
    if shapes and not hasattr(_KinetoEvent, "structured_input_shapes"):
        pytest.skip("this torch.profiler tells no shapes of lists of tensors")
    try:
        config = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        pytest.skip("this torch.profiler looks at one thread alone")
    return profile(
        activities=[ProfilerActivity.CPU], record_shapes=shapes, experimental_config=config
    )


def shapes_of(event: Any) -> list[Any]:
    """Of the inputs of a profiler's event, where it was asked for them."""
    if hasattr(event, "structured_input_shapes"):
        return event.structured_input_shapes()  # type: ignore[no-any-return]
    return event.shapes()  # type: ignore[no-any-return]
