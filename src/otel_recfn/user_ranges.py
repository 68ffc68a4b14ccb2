"""The public ``record_function``, with what PyTorch has to know of it."""

from __future__ import annotations

from otel_recfn.callbacks import torchs_observers
from otel_recfn.pytorch.compiling import trace_as_torchs
from otel_recfn.recording.recorder import recorder

record_function = recorder.record_function
trace_as_torchs(record_function)
torchs_observers.watch()
