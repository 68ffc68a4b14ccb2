"""The public ``record_function`` and ``step``, with what PyTorch has to know of them."""

from __future__ import annotations

from typing import Any

from otel_recfn.callbacks import torchs_observers
from otel_recfn.model.sources import UNNAMED_STEP
from otel_recfn.pytorch.compiling import trace_as_torchs, trace_instead, trace_objects_as_torchs
from otel_recfn.recording.recorder import recorder
from otel_recfn.sources.steps import step

__all__ = ["record_function", "step"]

record_function = recorder.record_function


def traced_step(name: str | None = None, _number: int | None = None) -> Any:
    """What ``torch.compile`` traces for a step: PyTorch's ``record_function``, where a range has a name alone."""
    return record_function(UNNAMED_STEP if name is None else name)


trace_as_torchs(record_function)
torchs_observers.watch()
trace_instead(step, traced_step)
trace_objects_as_torchs(step)
