"""Of each stage every allocation fails once, one after the other: the program notices nothing,
what is lost is counted once, and recording goes on.

``tests/soak/memory_soak.py`` lets them fail at random, in all threads at once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

pytestmark = pytest.mark.one_python

Run: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"
MANY = 520
"""So many rows that a mask of them, of a byte each, may find no memory."""
LIBRARY = Path(__file__).parents[1] / "helpers" / "failing_allocations.c"

BEGIN = """
import gzip
import json
import logging
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from helpers.failing_allocations import each_failure
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, _native, profile
from otel_recfn import record_function

PATIENCE_S = 60
messages = []
log = logging.getLogger("otel_recfn")
log.propagate = False
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
log.addHandler(handler)


class Counts(SpanProcessor):
    ours = 0

    def on_end(self, span):
        self.ours += span.instrumentation_scope.name == "otel_recfn"


provider, counts = TracerProvider(shutdown_on_exit=False), Counts()
provider.add_span_processor(counts)
tracer = provider.get_tracer("program")
begun = 0


def work(ranges):
    global begun
    outermost = ranges // 8
    with tracer.start_as_current_span("request"), record_function("around"):
        for _ in range(ranges - outermost - 1):
            with record_function("inside"):
                pass
    for _ in range(outermost):
        with record_function("outermost"):
            pass
    begun += ranges


@contextmanager
def without_threads():
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    start, threading.Thread.start = threading.Thread.start, refuse
    try:
        yield
    finally:
        threading.Thread.start = start


def lost_in_drain():
    # Counters of captures add it to other losses.
    return _native.counters().lost_in_drain


def rows_in(path):
    content = path.read_bytes()
    events = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events = events if isinstance(events, list) else events["traceEvents"]
    return sum(event["ph"] == "X" and "Event id" in event["args"] for event in events)
"""

STAGES = (
    BEGIN
    + """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

stage, ranges, smallest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sink, path, reader = InMemorySink(10_000_000), Path(sys.argv[4]), InMemoryMetricReader()
keywords = {
    "drain": {"tracer_provider": provider, "meter_provider": MeterProvider([reader])},
    "view": {},
    "file": {"chrome_trace": str(path)},
    "sender": {"tracer_provider": provider, "span_budget": None},
}[stage]
instrumentor = OtelRecordFunctionInstrumentor()
with without_threads():  # so that each drain is a flush's, in this thread
    instrumentor.instrument(sinks=[sink], **keywords)
beside = profile()
if stage == "view":
    beside.start()


def flush():
    return instrumentor.flush(PATIENCE_S)


def settle():
    work(ranges)
    assert flush()
    work(ranges)


def check():
    counters, lost = instrumentor.counters(), lost_in_drain()
    stored = sum(map(len, sink.batches()))
    assert counters["recorded"] == begun, (counters, begun)
    assert counters["waiting"] == 0, counters
    assert counters["exported"] == counts.ours, (counters, counts.ours)
    missed = counters.get("in_memory.dropped.error", 0)
    assert stored + missed + lost == begun, (stored, missed, lost, begun)
    if stage == "file":
        dropped = sum(
            counters[f"chrome_trace.dropped.{why}"] for why in ("queue_full", "shutdown", "error")
        )
        assert rows_in(path) + dropped + lost == begun, (rows_in(path), counters, lost, begun)


failures, elsewhere = 0, stage in ("file", "sender")
for raised in each_failure(flush, before=settle, elsewhere=elsewhere, smallest=smallest):
    assert raised is None, repr(raised)
    failures += 1
    if failures % 10 == 1:
        work(ranges)
        assert flush()
        check()
assert flush()
check()
beside.stop()
instrumentor.uninstrument()
check()
assert failures > 5, failures
again = {message for message in messages if messages.count(message) > 1 + (stage == "view")}
assert not again, again
"""
)

OTLP = (
    BEGIN
    + """
from helpers.batches import context, make_batch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.transports import Outcome, Verdict
from otel_recfn.sinks.spans.sink import SpansSink

ROWS = 100
bodies = []


class Takes:
    where, encoding, hidden = "here", "gzip", ()

    def send(self, body):
        bodies.append(body)
        return Outcome(Verdict.TAKEN)

    def close(self):
        pass


sink = SpansSink(provider, None, delivery=OtlpDelivery(Takes(), 1 << 12, 1 << 24))
capture = Capture(Selected(), [sink], buffer_bytes=1 << 20)


def put():
    # Below a span, as roots are encoded by protobuf, which crashes where it finds no memory.
    global begun
    row = {"context": context(1, 2), "name": "inside", "shapes": "[[2]]"}
    first = make_event_id(1, begun + 1)
    capture.put(make_batch([{**row, "event_id": first + number} for number in range(ROWS)]))
    capture.deliver()
    begun += ROWS


def flush():
    return capture.flush(PATIENCE_S)


def check():
    counters = capture.counters(RecorderCounters())
    requests = [ExportTraceServiceRequest.FromString(gzip.decompress(each)) for each in bodies]
    arrived = sum(
        len(scope.spans)
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
    )
    assert (counters["recorded"], counters["waiting"]) == (begun, 0), (counters, begun)
    assert counters["exported"] == arrived > 0, (counters, arrived)


def settle():
    put()
    assert flush()
    put()


failures = 0
for raised in each_failure(flush, before=settle, elsewhere=True):
    assert raised is None, repr(raised)
    failures += 1
put()
assert flush()
check()
capture.close(PATIENCE_S)
check()
assert failures > 10, failures
assert len(set(messages)) == len(messages), messages
"""
)

PROFILES = (
    BEGIN
    + """
RANGES = 520
made = None


def block():
    global made
    with without_threads(), profile() as made:
        work(RANGES)


def tables():
    made.key_averages().table()
    made.tree()
    made.tree("module")
    made.events()


def check_a_healthy_one():
    block()
    assert len(made.events()) == RANGES


check_a_healthy_one()
tables()
raising = failures = 0
for raised in each_failure(block):
    failures += 1
    raising += raised is not None
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    assert not _native.recording()
    if raised is None:
        counters = made.counters()
        assert counters["recorded"] == RANGES, counters
        lost = counters["dropped.error"] + counters.get("event_store.dropped.error", 0)
        assert len(made.events()) + lost == RANGES, counters
    check_a_healthy_one()
assert failures > raising > 0, (failures, raising)
asked = 0
for raised in each_failure(tables, smallest=4096):
    asked += 1
    # NumPy may forget to set an error.
    assert raised is None or isinstance(raised, (MemoryError, SystemError)), repr(raised)
assert asked > 50, asked
check_a_healthy_one()
"""
)

SWITCHED = (
    BEGIN
    + """
RANGES, SMALLEST = 100, 1024


class Instrumentor(OtelRecordFunctionInstrumentor):
    # A look at torch's metadata would be most of a start.
    def instrumentation_dependencies(self):
        return ()


instrumentor, sink = Instrumentor(), None


def start():
    global sink
    sink = InMemorySink()
    instrumentor.instrument(tracer_provider=provider, chrome_trace="trace.json", sinks=[sink])


def begin():
    start()
    work(RANGES)


def stop():
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def check_that_nothing_is_left():
    assert not instrumentor.is_instrumented_by_opentelemetry
    assert not _native.recording()
    for thread in threading.enumerate():
        if thread.name.startswith("otel-recfn"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread


def check_a_healthy_one():
    begin()
    stop()
    check_that_nothing_is_left()
    assert len(sink.events()) == RANGES == rows_in(Path("trace.json"))


check_a_healthy_one()
raising = failures = 0
for raised in each_failure(start, before=stop, smallest=SMALLEST):
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    raising += raised is not None
    failures += 1
    stop()
    check_that_nothing_is_left()
    if failures % 10 == 1:
        check_a_healthy_one()
stop()
assert raising > 5, (raising, failures)
check_a_healthy_one()
failures = 0
for raised in each_failure(stop, before=begin, smallest=SMALLEST):
    assert raised is None, repr(raised)
    failures += 1
    check_that_nothing_is_left()
    counters = instrumentor.counters()
    assert (counters["recorded"], counters["waiting"]) == (RANGES, 0), counters
assert failures > 3, failures
check_a_healthy_one()
"""
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("the library that lets allocations fail is for glibc, and has to be compiled")
    path = tmp_path_factory.mktemp("failing") / "failing_allocations.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(LIBRARY)], check=True)
    return path


@pytest.fixture
def run_failing(run_program: Run, library: Path) -> Run:
    """Runs a program in which allocations can be made to fail."""
    return partial(run_program, LD_PRELOAD=str(library), PYTHONMALLOC="malloc")


@pytest.mark.parametrize(
    ("stage", "ranges", "smallest", "file"),
    [
        pytest.param("drain", 20, 512, "", id="drain"),
        pytest.param("drain", MANY, 512, "", id="drain of many"),
        pytest.param("view", MANY, 512, "", id="view of a capture beside another"),
        pytest.param("file", 20, 512, "trace.json", id="Chrome trace"),
        pytest.param("file", 20, 512, "trace.json.gz", id="compressed Chrome trace"),
        pytest.param("sender", 100, 512, "", id="sender"),
    ],
)
def test_a_stage_counts_what_it_loses_and_goes_on(
    run_failing: Run, stage: str, ranges: int, smallest: int, file: str
) -> None:
    run_failing(STAGES, stage, str(ranges), str(smallest), file)


def test_spans_on_their_way_to_a_server_are_sent_or_counted(run_failing: Run) -> None:
    run_failing(OTLP)


def test_a_profile_raises_or_counts_and_the_next_one_has_all(run_failing: Run) -> None:
    run_failing(PROFILES)


def test_an_instrumentation_starts_or_raises_and_always_ends(run_failing: Run) -> None:
    run_failing(SWITCHED)
