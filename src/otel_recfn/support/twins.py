"""Which of the native parts and their Python twins the user asks for."""

from __future__ import annotations

import os

VARIABLE = "OTEL_RECFN_RECORDER"


def wanted_twin() -> str:
    """What ``OTEL_RECFN_RECORDER`` says now; ``auto`` where it says nothing."""
    return os.environ.get(VARIABLE, "").strip().lower() or "auto"
