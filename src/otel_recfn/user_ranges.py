"""The public ``record_function``, with what PyTorch has to know of it."""

from __future__ import annotations

from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.compiling import trace_as_torchs
from otel_recfn.recording.recorder import recorder


def _show_ranges(running: bool) -> None:
    """Show our ranges to PyTorch's own observers while some of those run."""
    from otel_recfn.callbacks import record_function  # noqa: F401 - it hands ranges of record_function to callbacks
    from otel_recfn.callbacks.registry import show_ranges_to_torch

    show_ranges_to_torch(running)


record_function = recorder.record_function
trace_as_torchs(record_function)
profilers.when_running_changes(_show_ranges)
