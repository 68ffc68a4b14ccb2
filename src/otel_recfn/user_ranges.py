"""The public ``record_function``, ``step`` and ``batch``, with what PyTorch and ``torch.compile``
have to know of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from otel_recfn import _native
from otel_recfn.model.events import UNNAMED_STEP
from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.compiling import trace_as_torchs, trace_instead, trace_objects_as_torchs
from otel_recfn.sources.request_batches import UNNAMED_BATCH, batch
from otel_recfn.sources.steps import step

__all__ = ["batch", "record_function", "step"]


def _expose_ranges(running: bool) -> None:
    """Show our ranges to PyTorch's own observers while some of those run."""
    # It hands ranges of record_function to callbacks.
    from otel_recfn.callbacks import record_function  # noqa: F401
    from otel_recfn.callbacks.registry import expose_ranges_to_torch

    expose_ranges_to_torch(running)


def traced_step(name: str | None = None, _number: int | None = None) -> Any:
    """The stand-in for ``step`` in compiled code, where a range has a name alone."""
    return record_function(UNNAMED_STEP if name is None else name)


def traced_batch(contexts: Iterable[Any], name: str = UNNAMED_BATCH) -> Any:
    """The stand-in for ``batch`` in compiled code."""
    return record_function(name)


record_function = _native.record_function
trace_as_torchs(record_function)
profilers.add_running_listener(_expose_ranges)
trace_instead(step, traced_step)
trace_instead(batch, traced_batch)
trace_objects_as_torchs(step)
