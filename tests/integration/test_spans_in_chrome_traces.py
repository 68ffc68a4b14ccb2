"""The program's own spans in the Chrome trace that it writes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function, step
from trace_files import events_in

Slices = dict[str, list[dict[str, Any]]]


def slices_in(path: Path) -> Slices:
    found: Slices = defaultdict(list)
    for event in events_in(path, "X"):
        found[event["name"]].append(event)
    return found


def lies_in(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    starts = outer["ts"] <= inner["ts"] and inner["tid"] == outer["tid"]
    return bool(starts and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


def assert_nest(slices: Slices) -> None:
    for tid in {one["tid"] for each in slices.values() for one in each}:
        own = sorted(
            [
                (one["ts"], -one["dur"])
                for each in slices.values()
                for one in each
                if one["tid"] == tid
            ]
        )
        ends: list[Any] = []
        for start, minus_duration in own:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - minus_duration <= ends[-1]
            ends.append(start - minus_duration)


def work_in(around: context.Context) -> None:
    context.attach(around)
    with record_function("worker"):
        pass


@pytest.fixture
def tracer() -> trace.Tracer:
    return TracerProvider(shutdown_on_exit=False).get_tracer("test")


def test_spans_lie_around_what_ran_in_them(
    instrumentor: OtelRecordFunctionInstrumentor, tracer: trace.Tracer, tmp_path: Path
) -> None:
    instrumentor.instrument(chrome_trace=tmp_path / "trace.json")
    with tracer.start_as_current_span("request") as request:
        with (
            record_function("outer"),
            tracer.start_as_current_span("child"),
            record_function("inner"),
        ):
            pass
        thread = Thread(target=work_in, args=(context.get_current(),))
        thread.start()
        thread.join()
    with step("decode", 7):
        pass
    instrumentor.uninstrument()
    slices = slices_in(tmp_path / "trace.json")
    assert_nest(slices)
    [outer], [child], [inner], [worker] = (
        slices[name] for name in ("outer", "child", "inner", "worker")
    )
    here, there = slices["request"]
    for low, high in ((inner, child), (child, outer), (outer, here), (worker, there)):
        assert lies_in(low, high)
    made = request.get_span_context()
    assert here["args"] == {"trace_id": f"{made.trace_id:032x}", "span_id": f"{made.span_id:016x}"}
    assert "decode#7" in slices


def test_spans_that_were_open_when_a_profile_began_lie_around_what_it_has(
    instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    instrumentor.instrument(
        tracer_provider=provider
    )  # which alone has no use for the names of spans
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("epoch"), tracer.start_as_current_span("step"):
        with record_function("before"):
            pass
        with profile() as captured, record_function("meanwhile"):
            pass
    captured.export_chrome_trace(tmp_path / "trace.json")
    slices = slices_in(tmp_path / "trace.json")
    [epoch], [step_], [meanwhile] = slices["epoch"], slices["step"], slices["meanwhile"]
    assert lies_in(meanwhile, step_)
    assert lies_in(step_, epoch)
