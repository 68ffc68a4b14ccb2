"""Samples of what runs in Python while a thread records nothing."""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import json
import logging
import os
import pickle
import queue
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult

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
from otel_recfn.batches.sampled_functions import SampledFunction
from otel_recfn.observing import RecordFunction
from otel_recfn.report.traces.reading import read_trace
from otel_recfn.sources.python_samples import CORES, FUTEX_CALL, waits_for

MS = 1_000_000
MANY = 10
"""So many samples that the first one, of which clocks say nothing, is little of the time."""
SPINNERS = 4
WAIT_S = 0.2
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


def compute(done: threading.Event) -> None:
    """Without the GIL."""
    data = bytes(1 << 20)
    while not done.is_set():
        hashlib.sha256(data)


def lookup_vocabulary(lock: threading.Lock, timeout_s: float) -> bool:
    return lock.acquire(timeout=timeout_s)


def look_up_until(done: threading.Event, lock: threading.Lock) -> None:
    """Each time for so short that the thread is looked at 50 times a second."""
    while not done.is_set():
        with record_function("look up"):
            lookup_vocabulary(lock, WAIT_S)


def record() -> None:
    with record_function("before"):
        pass


@contextmanager
def running(work: Callable[[threading.Event], object], name: str = "worker") -> Iterator[None]:
    """In a thread that has recorded a range before."""
    done = threading.Event()

    def record_and_work() -> None:
        record()
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


class SlowHandler(logging.Handler):
    """A handler of log records that takes long."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self.done = done

    def emit(self, _record: logging.LogRecord) -> None:
        while not self.done.is_set():
            pass


def save_checkpoint(done: threading.Event) -> None:
    state = list(range(100_000))
    number = 0
    while not done.is_set():
        with step("train", number):
            gzip.compress(pickle.dumps(state))
        number += 1


def handle_request(done: threading.Event) -> None:
    while not done.is_set():
        time.sleep(0.01)


def log(done: threading.Event) -> None:
    logger = logging.Logger("slow")
    logger.addHandler(SlowHandler(done))
    logger.warning("hello")


def temperature(done: threading.Event) -> None:
    while not done.is_set():
        subprocess.run(["sleep", "0.01"], check=True)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (save_checkpoint, "save_checkpoint: gzip.compress"),
        (handle_request, "handle_request"),
        (lambda done: Pictures(done)[3], "__getitem__"),  # CPython 3.10 doesn't know the class
        (parse, "parse: json.loads"),
        (log, "emit"),
        (temperature, "temperature: subprocess.run"),
    ],
)
def test_what_holds_programs_up_has_its_name(
    work: Callable[[threading.Event], object], name: str
) -> None:
    with profile() as prof, running(work):
        wait_until(lambda: any(found.endswith(name) for found in names(prof)))


def prepare() -> None:
    end_ns = time.perf_counter_ns() + 5 * MS
    while time.perf_counter_ns() < end_ns:
        pass


def test_what_takes_less_than_the_time_between_looks_is_sampled() -> None:
    def serve(done: threading.Event) -> None:
        while not done.is_set():
            with record_function("operator"):
                pass
            prepare()

    with profile() as prof, running(serve):
        wait_until(lambda: "prepare" in names(prof))


def hold_the_gil() -> int:
    return sum(range(30_000_000))


def test_a_function_has_the_time_for_which_nobody_else_could_run() -> None:
    """The frames of its thread can't be read until it gives the GIL back."""

    def serve(done: threading.Event) -> None:
        while not done.is_set():
            with record_function("operator"):
                pass
            hold_the_gil()

    def sample_time() -> float:
        found = [each for each in prof.outside() if each.name == "hold_the_gil"]
        return max([each.time / each.count for each in found], default=0)

    with profile() as prof, running(serve):
        wait_until(lambda: sample_time() > 150_000)


def test_a_thread_that_waits_for_a_lock_is_found_in_the_function_that_takes_it() -> None:
    lock = threading.Lock()
    lock.acquire()
    with profile() as prof, running(lambda done: look_up_until(done, lock)):
        wait_until(lambda: "lookup_vocabulary" in names(prof))


def test_ranges_of_the_program_are_sampled_and_operators_are_not() -> None:
    def in_range(done: threading.Event) -> None:
        with record_function("load"):
            done.wait()

    def in_operator() -> None:
        with RecordFunction(RecordScope.FUNCTION) as operator:
            operator.before("aten::mm")
            operator_done.wait()

    operator_done = threading.Event()
    thread = threading.Thread(target=in_operator, name="operator")
    with profile() as prof:
        thread.start()
        with running(in_range, "range"):
            wait_until(lambda: bool(names(prof, "range")))
        names_in_operator = names(prof, "operator")
        operator_done.set()
        thread.join(PATIENCE_S)
    assert any("in_range" in name for name in names(prof, "range"))
    assert not names_in_operator


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


def get_from_a_queue(done: threading.Event) -> None:
    jobs: queue.Queue[None] = queue.Queue()
    threading.Thread(target=lambda: jobs.put(None) if done.wait() else None).start()
    jobs.get()


async def wait_for_requests(done: threading.Event) -> None:
    while not done.is_set():
        await asyncio.sleep(0.01)


def run_an_event_loop(done: threading.Event) -> None:
    asyncio.run(wait_for_requests(done))


LIBRARY: dict[str, Any] = {"__name__": "server"}
"""The module of a library with a server."""
exec(
    compile(
        "def serve(run, requests): run(requests)",
        str(Path(sysconfig.get_path("purelib"), "server.py")),
        "exec",
    ),
    LIBRARY,
)


def run_a_server(done: threading.Event) -> None:
    serve: Callable[[Any, Coroutine[Any, Any, None]], None] = LIBRARY["serve"]
    serve(asyncio.run, wait_for_requests(done))


def wait_with_an_idle_pool(done: threading.Event) -> None:
    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(record).result()
        done.wait()


@pytest.mark.parametrize(
    "wait", [get_from_a_queue, run_an_event_loop, run_a_server, wait_with_an_idle_pool]
)
def test_waiting_for_work_is_shown_and_no_serious_finding(
    wait: Callable[[threading.Event], None],
) -> None:
    done = threading.Event()
    own = threading.current_thread().name

    def end_when_sampled() -> None:
        try:
            wait_until(lambda: any(is_sampled_often(each) for each in prof.outside()))
        finally:
            done.set()

    def is_sampled_often(function: SampledFunction) -> bool:
        return function.thread == own and function.count >= MANY

    with profile() as prof:
        record()
        watcher = threading.Thread(target=end_when_sampled)
        watcher.start()
        wait(done)
        watcher.join(PATIENCE_S)
    assert any(wait.__name__ in name for name in names(prof, own))
    found = [finding for finding in prof.findings() if finding.rule == "outside"]
    assert found
    assert not any(finding.serious for finding in found)


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


class ByName(Sampler):
    """Drops some spans."""

    def should_sample(self, *arguments: Any, **keywords: Any) -> SamplingResult:
        is_dropped = "unsampled" in (*arguments, *keywords.values())
        return (ALWAYS_OFF if is_dropped else ALWAYS_ON).should_sample(*arguments, **keywords)

    def get_description(self) -> str:
        return "by name"


def test_what_runs_just_after_an_unsampled_request_is_sampled() -> None:
    """Its operators are written nowhere."""
    traces = Traces(ByName(), {}, outside=True)

    def serve_some() -> None:
        for _ in range(20):
            with traces.tracer.start_as_current_span("unsampled"), record_function("unsampled"):
                pass
            with traces.tracer.start_as_current_span("request"):
                with record_function("before"):
                    pass
                prepare()

    def functions() -> str:
        serve_some()
        attributes = [span.attributes or {} for span in traces.spans()]
        return str([each.get("recfn.unit.outside.top") for each in attributes])

    try:
        wait_until(lambda: "prepare" in functions())
    finally:
        traces.instrumentor.uninstrument()


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


def tells_system_calls() -> bool:
    """Whether the kernel says in which call a thread waits; some sandboxes don't."""
    return FUTEX_CALL is not None and os.access("/proc/self/syscall", os.R_OK)


def waits(store: InMemorySink, thread: str) -> Counter[str]:
    return Counter(one.waits_for for one in store.samples() if one.thread.name == thread)


@contextmanager
def spinning() -> Iterator[None]:
    """Several threads that work: on a busy machine one alone may get too little of a core."""
    done = threading.Event()
    spinners = [
        threading.Thread(target=compute, args=(done,), name="spinner-0") for _ in range(SPINNERS)
    ]
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        done.set()
        for spinner in spinners:
            spinner.join(PATIENCE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="no clocks of other threads")
def test_who_waits_beside_threads_that_work_waits_for_them(
    traces: Traces, store: InMemorySink
) -> None:
    lock = threading.Lock()
    lock.acquire()
    with spinning(), running(lambda done: look_up_until(done, lock)):
        wait_until(lambda: waits(store, "worker")["spinner-0"] >= MANY)


@pytest.mark.skipif(not tells_system_calls(), reason="no system calls of other threads")
def test_who_reads_waits_for_no_thread_whatever_works_meanwhile(
    traces: Traces, store: InMemorySink
) -> None:
    reader, writer = os.pipe()

    def look_up(_done: threading.Event) -> None:
        with traces.tracer.start_as_current_span("request"), record_function("look up"):
            read_answer(reader)

    with spinning(), running(look_up):
        wait_until(lambda: waits(store, "worker")["read_answer"] >= MANY)
        os.write(writer, b"1")
    os.close(reader)
    os.close(writer)


def read_answer(pipe: int) -> None:
    os.read(pipe, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="no clocks of other threads")
def test_a_request_that_waits_alone_says_in_which_function(
    traces: Traces, store: InMemorySink
) -> None:
    lock = threading.Lock()
    lock.acquire()

    def look_up(_done: threading.Event) -> None:
        with traces.tracer.start_as_current_span("request"), record_function("look up"):
            lookup_vocabulary(lock, PATIENCE_S)

    with running(look_up):
        wait_until(lambda: waits(store, "worker")["lookup_vocabulary"] >= MANY)
        lock.release()
    attributes = traces.by_name()["look up"].attributes or {}
    assert any("lookup_vocabulary" in text for text in attributes["recfn.unit.waited_for"])


def quiet_thread(
    worked_ms: int,
    coreless_ms: int = 0,
    others_ms: int = 0,
    interval_ms: int = 20,
    busiest: int = threading.get_native_id(),
) -> QuietThread:
    """A thread that has been quiet for 20 ms."""
    times = (interval_ms * MS, worked_ms * MS, coreless_ms * MS, others_ms * MS)
    return QuietThread((1, 0, 0, 0, 20 * MS, 20 * MS, *times, busiest))


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
