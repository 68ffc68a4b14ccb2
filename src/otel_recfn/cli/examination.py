"""Everything the doctor examines, in the order of the way of an event: torch, observer, recorder, context, provider, export."""

from __future__ import annotations

from collections.abc import Callable

from otel_recfn.cli import examine_export, examine_recording, examine_torch
from otel_recfn.cli.check import Check
from otel_recfn.sinks.otlp.official import secrets_from_environment
from otel_recfn.support.safe_text import safe_error

EXAMINATIONS: tuple[tuple[str, Callable[[], Check]], ...] = (
    ("package", examine_recording.package),
    ("settings", examine_recording.settings),
    ("recorder", examine_recording.recorder),
    ("compiler", examine_torch.compiler),
    ("torch", examine_torch.torch),
    ("cache", examine_torch.cache),
    ("observer", examine_torch.observer),
    ("callbacks", examine_torch.callbacks),
    ("details", examine_torch.python_details),
    ("compile", examine_torch.torch_compile),
    ("context", examine_export.context),
    ("SDK", examine_export.sdk),
    ("provider", examine_export.provider),
    ("exporters", examine_export.exporters),
    ("endpoint", examine_export.endpoint),
    ("native OTLP", examine_export.native_otlp),
)


def examine() -> list[Check]:
    """The result of each examination; one that raises unexpectedly counts as failed."""
    return [_careful(name, examination) for name, examination in EXAMINATIONS]


def _careful(name: str, examination: Callable[[], Check]) -> Check:
    try:
        return examination()
    except Exception as error:
        return Check(name, False, f"could not be examined: {safe_error(error, secrets_from_environment())}")
