"""Whether a context switches instrumentation off."""

from __future__ import annotations

from opentelemetry import context as otel_context
from opentelemetry.context import Context

SUPPRESSION_KEYS = tuple(
    key for key in (getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None), "suppress_instrumentation") if key
)
"""Keys of a context that switch instrumentation off: those that ``is_instrumentation_enabled`` of OpenTelemetry asks for."""


def is_suppressed(context: Context) -> bool:
    """Whether it does."""
    return any(context.get(key) for key in SUPPRESSION_KEYS)
