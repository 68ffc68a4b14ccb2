"""The program's own spans in the Chrome trace that it writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread, get_native_id
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.span_slices import assert_times, span_slices
from helpers.timeouts import PATIENCE_S, let_time_pass
from helpers.trace_files import events_in
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function, step

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
    # Which alone has no use for the names of spans.
    instrumentor.instrument(tracer_provider=provider)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("epoch"), tracer.start_as_current_span("step"):
        with record_function("before"):
            pass
        with profile() as captured, record_function("meanwhile"):
            pass
    captured.export_chrome_trace(tmp_path / "trace.json")
    slices = slices_in(tmp_path / "trace.json")
    [epoch] = slices["epoch"]
    [step_] = slices["step"]
    [meanwhile] = slices["meanwhile"]
    assert lies_in(meanwhile, step_)
    assert lies_in(step_, epoch)


# --- spans whose begins and ends are heard of

Spans = dict[str, ReadableSpan]


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider(shutdown_on_exit=False)


def recorded(
    instrumentor: OtelRecordFunctionInstrumentor,
    provider: TracerProvider,
    path: Path,
    program: Callable[[trace.Tracer], object],
) -> tuple[Spans, dict[str, dict[str, Any]]]:
    """The spans of a program by name, and its spans' slices: a begin has what its end says, too."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider, chrome_trace=path, roots_per_second=None)
    program(provider.get_tracer("test"))
    instrumentor.uninstrument()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    return spans, span_slices(path)


def test_a_span_is_a_slice_from_its_begin_to_its_end_with_ranges_in_it_or_without(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    def program(tracer: trace.Tracer) -> None:
        with tracer.start_as_current_span("request"):
            let_time_pass(1_000_000)
            with record_function("outer"), tracer.start_as_current_span("within"):
                let_time_pass(1_000_000)
                with record_function("inner"):
                    pass
                let_time_pass(1_000_000)
            with tracer.start_as_current_span("render"):
                let_time_pass(1_000_000)
            tracer.start_span("never current").end()

    path = tmp_path / "trace.json"
    spans, slices = recorded(instrumentor, provider, path, program)
    assert set(slices) == {"request", "within", "render", "never current"}
    for name, each in slices.items():
        assert_times(path, each, spans[name])
    all_slices = slices_in(path)
    assert_nest(all_slices)
    [outer] = all_slices["outer"]
    [inner] = all_slices["inner"]
    # Where the machine made a thread wait in between.
    busy = [each for each in slices.values() if each["ph"] == "b"]
    for low, high in (
        (inner, slices["within"]),
        (slices["within"], outer),
        (outer, slices["request"]),
    ):
        assert lies_in(low, high) or busy


def test_spans_that_do_not_nest_stand_beside_their_thread(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    def program(tracer: trace.Tracer) -> None:
        async def request(number: int, mine: asyncio.Event, others: asyncio.Event) -> None:
            with tracer.start_as_current_span(f"request {number}"):
                for _ in range(2):
                    await mine.wait()
                    mine.clear()
                    with record_function("work"):
                        pass
                    others.set()

        async def main() -> None:
            first = asyncio.Event()
            second = asyncio.Event()
            first.set()
            await asyncio.gather(request(1, first, second), request(2, second, first))

        asyncio.run(main())
        span = tracer.start_span("ends in a range")
        with record_function("around the end"):
            span.end()
        span = tracer.start_span("ends elsewhere")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(span.end).result()
        tracer.start_span("began long ago", start_time=time.time_ns() - 10**9).end()

    path = tmp_path / "trace.json.gz"
    spans, slices = recorded(instrumentor, provider, path, program)
    names = {"request 1", "request 2", "ends in a range", "ends elsewhere", "began long ago"}
    assert {name: each["ph"] for name, each in slices.items()} == dict.fromkeys(names, "b")
    for name, each in slices.items():
        assert_times(path, each, spans[name])
    assert_nest(slices_in(path))


def test_a_span_stands_in_the_thread_where_it_began_also_if_no_range_did(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    threads = list[int]()

    def program(tracer: trace.Tracer) -> None:
        def serve() -> None:
            threads.append(get_native_id())
            with tracer.start_as_current_span("request"):
                pass

        with record_function("beside"):
            thread = Thread(target=serve, name="server")
            thread.start()
            thread.join()
            assert instrumentor.flush(PATIENCE_S)

    _, slices = recorded(instrumentor, provider, tmp_path / "trace.json", program)
    assert slices["request"]["tid"] == threads[0]


def test_a_span_that_is_open_is_a_slice_up_to_the_end_of_the_file(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    seen = list[dict[str, Any]]()

    def program(tracer: trace.Tracer) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(tracer.start_as_current_span("request"))
            with record_function("work"):
                pass
            assert instrumentor.flush(PATIENCE_S)
            seen.append(span_slices(path)["request"])
            [work] = slices_in(path)["work"]
            assert seen[0]["ts"] <= work["ts"]
            assert work["ts"] + work["dur"] <= seen[0]["ts"] + seen[0]["dur"]

    spans, slices = recorded(instrumentor, provider, path, program)
    assert seen[0]["args"] == slices["request"]["args"]
    assert_times(path, slices["request"], spans["request"])


def test_a_step_is_no_slice_of_a_span_as_it_is_a_range(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    def program(tracer: trace.Tracer) -> None:
        with step("decode"), record_function("work"):
            pass

    spans, slices = recorded(instrumentor, provider, tmp_path / "trace.json", program)
    assert "decode" in spans
    assert not slices


def test_a_profile_beside_it_exports_the_spans_of_its_time(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, tmp_path: Path
) -> None:
    instrumentor.instrument(tracer_provider=provider)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("before"), record_function("work"):
        pass
    with profile() as captured, tracer.start_as_current_span("meanwhile"):
        with record_function("work"):
            pass
        with tracer.start_as_current_span("without ranges"):
            pass
    with tracer.start_as_current_span("afterwards"), record_function("work"):
        pass
    captured.export_chrome_trace(tmp_path / "trace.json")
    assert set(span_slices(tmp_path / "trace.json")) == {"meanwhile", "without ranges"}
