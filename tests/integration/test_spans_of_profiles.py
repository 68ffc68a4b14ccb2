"""The program's own spans in the Chrome trace of a profile, without instrumentation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.span_slices import assert_times, span_slices
from helpers.timeouts import let_time_pass
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function


class Called(SpanProcessor):
    """A processor of the program's, which knows the spans that ended."""

    def __init__(self) -> None:
        self.spans = dict[str, ReadableSpan]()

    def on_end(self, span: ReadableSpan) -> None:
        self.spans[span.name] = span


@pytest.fixture
def called() -> Called:
    return Called()


@pytest.fixture
def provider(called: Called, monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """The global provider, which OpenTelemetry lets a process set but once."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(called)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield provider
    assert processors_of(provider) == [called]


def processors_of(provider: TracerProvider) -> list[Any]:
    return list(provider._active_span_processor._span_processors)


def exported(captured: profile, path: Path, called: Called) -> set[str]:
    """The names of the slices of spans, each of which has the span's times."""
    captured.export_chrome_trace(path)
    slices = span_slices(path)
    for name, each in slices.items():
        assert_times(path, each, called.spans[name])
    return set(slices)


def request(provider: TracerProvider, name: str) -> None:
    with provider.get_tracer("test").start_as_current_span(name):
        let_time_pass(1_000_000)
        with record_function("work"):
            pass
        let_time_pass(1_000_000)


def test_a_span_is_a_slice_from_its_begin_to_its_end(
    provider: TracerProvider, called: Called, tmp_path: Path
) -> None:
    with profile() as captured:
        request(provider, "request")
        with provider.get_tracer("test").start_as_current_span("without ranges"):
            let_time_pass(1_000_000)
    request(provider, "afterwards")
    assert exported(captured, tmp_path / "trace.json", called) == {"request", "without ranges"}


def test_instrumentation_that_begins_and_ends_meanwhile(
    instrumentor: OtelRecordFunctionInstrumentor,
    provider: TracerProvider,
    called: Called,
    tmp_path: Path,
) -> None:
    tracer = provider.get_tracer("test")
    with profile() as captured:
        with tracer.start_as_current_span("until it runs"):
            instrumentor.instrument()
        request(provider, "beside it")
        with tracer.start_as_current_span("until it has ended"):
            instrumentor.uninstrument()
        request(provider, "alone again")
        with profile():
            request(provider, "beside another")
    names = {"until it runs", "beside it", "until it has ended", "alone again", "beside another"}
    assert exported(captured, tmp_path / "trace.json", called) == names


def test_a_provider_that_is_set_while_the_profile_runs(
    provider: TracerProvider, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with profile() as captured:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        captured.events()  # which drains
        request(provider, "request")
    assert exported(captured, tmp_path / "trace.json", called) == {"request"}


def test_a_child_that_is_forked_while_the_profile_runs_has_its_own_spans(
    provider: TracerProvider, called: Called, tmp_path: Path
) -> None:
    with profile() as captured, provider.get_tracer("test").start_as_current_span("parent's"):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                request(provider, "child's")
                captured.export_chrome_trace(tmp_path / "child.json")
                each = span_slices(tmp_path / "child.json")["child's"]
                assert_times(tmp_path / "child.json", each, called.spans["child's"])
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert exported(captured, tmp_path / "trace.json", called) == {"parent's"}


def test_exporters_get_what_they_got_without_the_profile(provider: TracerProvider) -> None:
    exporter = InMemorySpanExporter()
    with profile():
        provider.add_span_processor(exporting := SimpleSpanProcessor(exporter))
        request(provider, "request")
        assert provider.force_flush()
        provider.shutdown()
    assert [span.name for span in exporter.get_finished_spans()] == ["request"]
    processors = provider._active_span_processor
    processors._span_processors = tuple(
        each for each in processors_of(provider) if each is not exporting
    )


WITHOUT_SDK = """
import sys
from otel_recfn import profile, record_function

with profile() as captured:
    with record_function("work"):
        pass
assert [event.name for event in captured.events()] == ["work"]
assert "opentelemetry.sdk.trace" not in sys.modules
"""


def test_a_program_without_the_sdk_does_not_import_it() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_SDK], check=True)
