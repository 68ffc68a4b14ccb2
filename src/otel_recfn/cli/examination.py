"""Everything the doctor examines. What takes longest is told last: what shows only where PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from otel_recfn.cli import examine_export, examine_loaded, examine_recording
from otel_recfn.cli.check import Check
from otel_recfn.sinks.otlp.exporters import secrets_from_environment
from otel_recfn.support.safe_text import safe_error

EXAMINATIONS: tuple[tuple[str, Callable[[], Check]], ...] = (
    ("package", examine_recording.package),
    ("settings", examine_recording.settings),
    ("recorder", examine_recording.recorder),
    ("compiler", examine_recording.compiler),
    ("torch", examine_recording.torch),
    ("cache", examine_recording.cache),
    ("context", examine_export.context),
    ("SDK", examine_export.sdk),
    ("provider", examine_export.provider),
    ("exporters", examine_export.exporters),
    ("endpoint", examine_export.endpoint),
    ("native OTLP", examine_export.native_otlp),
)


def examine() -> Iterator[Check]:
    """The result of each examination, as soon as there is one; one that raises unexpectedly counts as failed."""
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(examine_loaded.loaded)
        for name, examination in EXAMINATIONS:
            yield _careful(name, examination)
        for name in examine_loaded.NAMES:
            yield _careful(name, partial(_of_loading, loading, name))


def _of_loading(loading: Future[dict[str, Check]], name: str) -> Check:
    return loading.result()[name]


def _careful(name: str, examination: Callable[[], Check]) -> Check:
    try:
        return examination()
    except Exception as error:
        return Check(name, False, f"could not be examined: {safe_error(error, secrets_from_environment())}")
