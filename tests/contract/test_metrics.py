"""Durations and counters of a capture as metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.counters import OUTCOMES
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session


class Program:
    """A program with a tracer and a meter provider, under an instrumentation that uses a
    recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.tracers = self.new_tracers()

    def new_tracers(self, **options: Any) -> TracerProvider:
        tracers = TracerProvider(shutdown_on_exit=False, **options)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        return tracers

    def instrument(self, **settings: Any) -> None:
        self.instrumentor.instrument(
            tracer_provider=self.tracers, **{"meter_provider": self.meters, **settings}
        )

    def run(self, name: str, times: int) -> None:
        for _ in range(times):
            with record_function(name):
                pass

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The points of each metric, by their attributes' values."""
        data = self.reader.get_metrics_data()
        scopes = (
            [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
            if data
            else []
        )
        assert {scope.scope.name for scope in scopes} <= {"otel_recfn"}
        return {
            metric.name: {
                "/".join(map(str, point.attributes.values())): point
                for point in metric.data.data_points
            }
            for scope in scopes
            for metric in scope.metrics
        }

    def counts(self) -> dict[str, int]:
        """Of ranges, by scope and name."""
        return {
            name: point.count
            for name, point in self.metrics().get("recfn.operation.duration", {}).items()
        }


@pytest.fixture
def program(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    session = Session(recorder)
    # The process's session has counters with a past.
    monkeypatch.setattr("otel_recfn.session.session.process_session", lambda: session)
    made = Program(recorder)
    yield made
    made.instrumentor.uninstrument()


def test_every_range_counts_whether_it_becomes_a_span_or_not(program: Program) -> None:
    program.tracers = program.new_tracers(sampler=ALWAYS_OFF)
    program.instrument()
    program.run("in vain", 50)
    assert program.instrumentor.flush(PATIENCE_S)
    found = program.metrics()
    point = found["recfn.operation.duration"]["USER_SCOPE/in vain"]
    assert point.count == 50
    assert 0 <= point.min <= point.sum / 50 <= point.max < PATIENCE_S
    assert program.exporter.get_finished_spans() == ()
    assert found["recfn.ranges"]["unsampled"].value == 50


def test_nothing_counts_twice_when_it_is_instrumented_again(program: Program) -> None:
    tracer = program.tracers.get_tracer("program")
    for times in (5, 7):
        # Each range is a span: how many sums there are beside depends on how long each took, and
        # how many roots outside of any span on pauses and drains.
        program.instrument(detail="all")
        with tracer.start_as_current_span("request"):
            program.run("again", times)
        program.instrumentor.uninstrument()
        program.run("between", 3)
    assert program.counts() == {"USER_SCOPE/again": 12}
    assert sum(point.value for point in program.metrics()["recfn.ranges"].values()) == 12


def test_what_is_lost_is_told_by_its_reason(program: Program) -> None:
    program.instrument(buffer_bytes=4096)

    def fill() -> None:
        with record_function("outer"):
            program.run("x" * 500, 2000)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join(PATIENCE_S)
    program.instrumentor.uninstrument()
    found = program.metrics()
    counters = program.instrumentor.counters()
    assert sum(program.counts().values()) == counters["recorded"] - counters["dropped.buffer_full"]
    assert counters["recorded"] + counters["added"] == sum(
        counters[outcome] for outcome in OUTCOMES
    )
    assert {name: point.value for name, point in found["recfn.lost"].items()} == {
        name: counters[name] for name in ("dropped.buffer_full", "incomplete") if counters[name]
    }
    assert found["recfn.ranges"]["dropped"].value == counters["dropped.buffer_full"] > 0
