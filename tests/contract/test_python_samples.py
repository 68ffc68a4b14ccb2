"""Samples of what runs in Python while a thread records nothing."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref
from collections import Counter
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
from otel_recfn._native import QuietThread
from otel_recfn.observing import RecordFunction
from otel_recfn.report.traces.reading import read_trace
from otel_recfn.sources.python_samples import CORES, FUTEX_CALL, waits_for

MS = 1_000_000
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


def spin(done: threading.Event) -> None:
    while not done.is_set():
        pass


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


def test_what_a_function_has_is_freed_when_it_returns() -> None:
    """Also while there is no garbage collection."""
    had: list[weakref.ref[Pictures]] = []

    def have(done: threading.Event) -> None:
        pictures = Pictures(done)
        had.append(weakref.ref(pictures))
        pictures[0]

    gc.disable()
    try:
        with profile() as prof, running(have):
            # CPython 3.10 doesn't know the class of a function.
            wait_until(lambda: any("__getitem__" in name for name in names(prof)))
        wait_until(lambda: had[0]() is None)
    finally:
        gc.enable()


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


MANY = 10
"""So many samples that the first one, of which clocks say nothing, is little of the time."""


def tells_system_calls() -> bool:
    """Whether the kernel says in which call a thread waits; some sandboxes don't."""
    return FUTEX_CALL is not None and os.access("/proc/self/syscall", os.R_OK)


def waits(store: InMemorySink, thread: str) -> Counter[str]:
    return Counter(one.waits_for for one in store.samples() if one.thread.name == thread)


class Locked:
    """A lock that somebody has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        lookup_vocabulary(self._lock)

    def end(self) -> None:
        self._lock.release()


class Pipe:
    """A pipe into which nobody has written."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def wait(self) -> None:
        read_answer(self._reader)

    def end(self) -> None:
        os.write(self._writer, b"1")
        os.close(self._writer)


def read_answer(pipe: int) -> None:
    os.read(pipe, 1)
    os.close(pipe)


@pytest.mark.skipif(sys.platform != "linux", reason="no clocks of other threads")
@pytest.mark.parametrize(
    ("awaited", "spins", "waited_for"),
    [
        (Locked, True, "spinner-0"),
        (Locked, False, "lookup_vocabulary"),
        pytest.param(
            Pipe,
            True,
            "read_answer",
            marks=pytest.mark.skipif(not tells_system_calls(), reason="no calls of threads"),
        ),
    ],
)
def test_who_waits_says_for_whom(
    traces: Traces,
    store: InMemorySink,
    awaited: type[Locked] | type[Pipe],
    spins: bool,
    waited_for: str,
) -> None:
    """Whoever reads from a pipe waits for no thread, whatever works meanwhile."""
    done = threading.Event()
    spinner = threading.Thread(target=spin, args=(done,), name="spinner-0")
    if spins:
        spinner.start()
    resource = awaited()

    def look_up(_done: threading.Event) -> None:
        with traces.tracer.start_as_current_span("request"), record_function("look up"):
            resource.wait()

    with running(look_up):
        wait_until(lambda: waits(store, "worker")[waited_for] >= MANY)
        resource.end()
    done.set()
    if spins:
        spinner.join(PATIENCE_S)
    attributes = traces.by_name()["look up"].attributes or {}
    assert any(waited_for in text for text in attributes["recfn.unit.waited_for"])


def quiet_thread(
    worked_ms: int,
    coreless_ms: int = 0,
    others_ms: int = 0,
    interval_ms: int = 20,
    busiest: int = threading.get_native_id(),
) -> QuietThread:
    """A thread that has been quiet for 20 ms."""
    times = (interval_ms * MS, worked_ms * MS, coreless_ms * MS, others_ms * MS)
    return QuietThread((1, 0, 0, 0, 20 * MS, *times, busiest))


@pytest.mark.parametrize(
    ("thread", "reason"),
    [
        (quiet_thread(12), ""),
        (quiet_thread(0, interval_ms=0), ""),
        (quiet_thread(2, others_ms=10), threading.current_thread().name),
        (quiet_thread(2, coreless_ms=10), "other processes"),
        (quiet_thread(2, coreless_ms=10, others_ms=9 * CORES), "other processes"),
        (quiet_thread(2, coreless_ms=10, others_ms=10 * CORES), threading.current_thread().name),
        (quiet_thread(2, others_ms=10, busiest=0), "load: json.loads"),
        (quiet_thread(2, coreless_ms=5, others_ms=5), "load: json.loads"),
    ],
)
def test_a_thread_waits_for_threads_that_work_for_a_core_or_in_its_function(
    thread: QuietThread, reason: str
) -> None:
    assert waits_for(thread, "load: json.loads") == reason
