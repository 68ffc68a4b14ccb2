"""The public ``step``, and what ``torch.compile`` traces for it: PyTorch's ``record_function`` of that name."""

from __future__ import annotations

from typing import Any

from otel_recfn.model.events import UNNAMED_STEP
from otel_recfn.pytorch.compiling import trace_instead, trace_objects_as_torchs
from otel_recfn.sources.steps import step
from otel_recfn.user_ranges import record_function

__all__ = ["step"]


def traced_step(name: str | None = None, _number: int | None = None) -> Any:
    """The stand-in for ``step`` in compiled code, where a range has a name alone."""
    return record_function(UNNAMED_STEP if name is None else name)


trace_instead(step, traced_step)
trace_objects_as_torchs(step)
