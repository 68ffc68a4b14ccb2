"""The error that says why PyTorch's operators can't be observed."""

from __future__ import annotations

from otel_recfn.model.errors import RecfnError

BUILD_AHEAD = "or build it ahead with `otel-recfn build` on a machine with the same torch"
"""A way out, for the end of a message."""


class ObserverUnavailable(RecfnError):
    """PyTorch's operators can't be observed here; the message says why, and the way out."""
