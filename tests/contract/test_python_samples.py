"""Samples of what runs in Python while a thread records nothing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from helpers.exported_traces import Traces
from helpers.forked_work import in_child
from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S, wait_until
from helpers.trace_files import samples_in
from otel_recfn import (
    InMemorySink,
    OtelRecordFunctionInstrumentor,
    RecordScope,
    profile,
    record_function,
    step,
)
from otel_recfn.observing import RecordFunction
from otel_recfn.report.traces.reading import read_trace

TEXT = json.dumps([{"a": number} for number in range(1000)])


class Pictures:
    """A dataset whose items take long."""

    def __init__(self, done: threading.Event) -> None:
        self.done = done

    def __getitem__(self, index: int) -> int:
        while not self.done.is_set():
            pass
        return index


def parse(done: threading.Event) -> None:
    while not done.is_set():
        json.loads(TEXT)


def lookup_vocabulary(lock: threading.Lock) -> None:
    with lock:
        pass


@contextmanager
def running(work: Callable[[threading.Event], object], name: str = "worker") -> Iterator[None]:
    """In a thread that has recorded a range before."""
    done = threading.Event()

    def record_and_work() -> None:
        with record_function("before"):
            pass
        work(done)

    thread = threading.Thread(target=record_and_work, name=name)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE_S)


def names(prof: profile, thread: str = "worker") -> set[str]:
    return {function.name for function in prof.outside() if function.thread == thread}


def sampler_runs() -> bool:
    return "otel-recfn sampler" in {thread.name for thread in threading.enumerate()}


def test_functions_of_the_program_have_the_library_function_that_they_call() -> None:
    with profile() as prof, running(parse):
        wait_until(lambda: "parse: json.loads" in names(prof))
    (found,) = [each for each in prof.outside() if each.name == "parse: json.loads"]
    assert found.count > 0
    assert found.time > 0
    assert not sampler_runs()


def test_methods_have_their_class() -> None:
    with profile() as prof, running(lambda done: Pictures(done)[3]):
        wait_until(lambda: any(name.endswith("__getitem__") for name in names(prof)))


def test_a_thread_that_waits_for_a_lock_is_found_in_the_function_that_takes_it() -> None:
    lock = threading.Lock()
    with profile() as prof:
        lock.acquire()
        with running(lambda done: lookup_vocabulary(lock)):
            wait_until(lambda: "lookup_vocabulary" in names(prof))
            lock.release()


def test_ranges_of_the_program_are_sampled_and_operators_are_not() -> None:
    def in_range(done: threading.Event) -> None:
        with record_function("load"):
            done.wait()

    def in_operator(done: threading.Event) -> None:
        with RecordFunction(RecordScope.FUNCTION) as operator:
            operator.before("aten::mm")
            done.wait()

    with profile() as prof, running(in_operator, "operator"), running(in_range, "range"):
        wait_until(lambda: bool(names(prof, "range")))
    assert any("in_range" in name for name in names(prof, "range"))
    assert not names(prof, "operator")


def test_a_thread_that_records_nothing_is_not_followed() -> None:
    done = threading.Event()
    stranger = threading.Thread(target=parse, args=(done,), name="stranger")
    stranger.start()
    with profile() as prof, running(parse):
        wait_until(lambda: bool(names(prof)))
    done.set()
    stranger.join(PATIENCE_S)
    assert not names(prof, "stranger")


def test_a_profile_has_no_samples_of_before_it_began() -> None:
    with profile() as first, running(parse):
        wait_until(lambda: bool(names(first)))
        with profile(outside=False) as without, profile() as second:
            wait_until(lambda: bool(names(second)))
    assert not without.outside()
    assert sum(each.count for each in second.outside()) < sum(
        each.count for each in first.outside()
    )


@pytest.mark.parametrize("settings", [{"outside": False}, {"python_calls": True}])
def test_no_thread_samples_where_nobody_wants_it_or_calls_are_traced(
    settings: dict[str, bool],
) -> None:
    with profile(**settings) as prof:
        assert not sampler_runs()
        with profile():
            assert sampler_runs() != settings.get("python_calls", False)
        assert not sampler_runs()
    assert not prof.outside()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_goes_on_with_samples() -> None:
    with profile() as prof:

        def sampled_in_child() -> None:
            with running(parse):
                wait_until(lambda: bool(names(prof)))

        in_child(sampled_in_child)
    assert not names(prof)


@pytest.fixture
def store() -> InMemorySink:
    return InMemorySink()


@pytest.fixture
def traces(store: InMemorySink) -> Iterator[Traces]:
    made = Traces(budgets={}, sinks=[store], outside=True)
    yield made
    made.instrumentor.uninstrument()


def parse_until_sampled(store: InMemorySink) -> None:
    while not any("parse_until_sampled: json.loads" in one.name for one in store.samples()):
        json.loads(TEXT)


def test_a_request_says_which_functions_took_its_time(traces: Traces, store: InMemorySink) -> None:
    def serve() -> None:
        with record_function("before"):
            pass
        parse_until_sampled(store)

    traces.serve(serve)
    attributes = traces.by_name()["before"].attributes or {}
    assert attributes["recfn.unit.outside.duration_ns"] > 0
    [*top] = attributes["recfn.unit.outside.top"]
    assert any("parse_until_sampled: json.loads: " in text for text in top)


def test_a_trace_of_ours_says_it_on_its_root(traces: Traces, store: InMemorySink) -> None:
    with record_function("around"):
        parse_until_sampled(store)
    traces.instrumentor.uninstrument()
    [root] = [span for span in traces.spans() if span.parent is None]
    assert "recfn.unit.outside.top" in (root.attributes or {})


def test_an_instrumented_program_may_switch_samples_off(monkeypatch: pytest.MonkeyPatch) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    monkeypatch.setenv("OTEL_RECFN_OUTSIDE", "false")
    instrumentor.instrument()
    assert not sampler_runs()
    instrumentor.uninstrument()
    monkeypatch.delenv("OTEL_RECFN_OUTSIDE")
    instrumentor.instrument(outside=False)
    assert not sampler_runs()
    instrumentor.uninstrument()
    instrumentor.instrument()
    assert sampler_runs()
    instrumentor.uninstrument()
    assert not sampler_runs()


def test_what_took_most_of_a_request_is_a_span_also_by_otlp(
    store: InMemorySink, instrumentor: OtelRecordFunctionInstrumentor
) -> None:
    with OtlpServer("http") as server:
        exporter = OTLPSpanExporter(server.endpoint)
        instrumentor.instrument(span_exporter=exporter, sinks=[store], outside=True)
        with step("serve"):
            with record_function("before"):
                pass
            parse_until_sampled(store)
        assert instrumentor.flush(PATIENCE_S)
        spans = {span.name: span for span in server.spans}
    found = spans["outside PyTorch: json.loads (sampled)"]
    assert found.parent_span_id == spans["serve"].span_id


def test_chrome_traces_have_them_as_samples(
    tmp_path: Path, store: InMemorySink, instrumentor: OtelRecordFunctionInstrumentor
) -> None:
    written, exported = tmp_path / "written.json", tmp_path / "exported.json"
    instrumentor.instrument(chrome_trace=written, sinks=[store], outside=True)
    with profile() as prof:
        with record_function("before"):
            pass
        parse_until_sampled(store)
    prof.export_chrome_trace(exported)
    instrumentor.uninstrument()
    for path in (written, exported):
        found = [event["args"]["Sampled function"] for event in samples_in(path)]
        assert any("parse_until_sampled: json.loads" in name for name in found)
        process = read_trace(path).process
        assert any("parse_until_sampled: json.loads" in one.name for one in process.samples)
        assert not any("sampled" in name for name in process.batch.names)
