"""``detail``, as programs see it: how many of a request's ranges become spans."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

RANGES = 1200


@pytest.mark.parametrize(
    ("settings", "spans"),
    [
        ({}, 1000),
        ({"detail": "low"}, 200),
        ({"detail": "normal"}, 1000),
        ({"detail": "all"}, RANGES),
        ({"detail": "all", "span_budget": 3}, 3),
    ],
    ids=["default", "low", "normal", "all", "a number beside it"],
)
def test_of_ranges_that_fail_so_many_are_spans(
    instrumentor: OtelRecordFunctionInstrumentor, settings: dict[str, Any], spans: int
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider, **settings)
    with provider.get_tracer("test").start_as_current_span("request"):
        for _ in range(RANGES):
            with suppress(ZeroDivisionError), record_function("fails"):
                raise ZeroDivisionError
    assert instrumentor.flush(PATIENCE_S)
    assert len([each for each in exporter.get_finished_spans() if each.name == "fails"]) == spans
