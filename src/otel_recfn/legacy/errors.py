"""What the legacy profiler refuses."""

from __future__ import annotations

from otel_recfn.model.errors import RecfnError


class ProfilerError(RecfnError, RuntimeError):
    """The profiler can't do that now, or an event isn't what it should be. A RuntimeError, as PyTorch's."""
