"""Every single allocation of a drain, and of each sink, fails once: nothing raises into the program, all counters balance."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_recfn.recording import backend
from soak import SOAK

HERE = Path(__file__).parent
RECORDERS = ["python", *(["native"] if backend.choose().kind == "native" else [])]
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library that lets allocations fail is for glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the library that lets allocations fail has to be compiled"),
]

LEAVE = """
import os, sys
if sys.version_info < (3, 11):  # which frees a function's cache twice where its 1,024th call found no memory for it
    sys.stdout.flush()
    os._exit(0)
"""
RECORD = """
import threading
from failing_allocations import each_failure, with_failures
from otel_recfn.model.events import EventFlag, EventKind
from otel_recfn.recording import backend
from otel_recfn.recording.protocol import ContextReading

recorder = backend.recorder()
from otel_recfn.recording.python import batch as python_batch  # as the session imports them, before anything is recorded
from otel_recfn.recording.python import pairing as python_pairing  # as the session imports them, before anything is recorded
count = 0
left_open = []
rows = {}
announced = {}


def begin(name, flags=0, **columns):
    return recorder.begin(name, 7, 1, flags=flags, **columns)


def record():
    global count
    count += 1
    recorder.context_attached(object())
    outer = begin(f"outer {count}", shapes="[[2,3]]", dtypes='["float32"]')
    task = begin(f"task {count}", int(EventFlag.ASYNC))
    for number in range(3):
        inner = begin(f"inner {count} {number}", sequence_nr=count, debug_handle=5)
        recorder.mark("moment")
        recorder.end(inner, "ValueError: wrong" if number == 1 else "")
    recorder.end(outer)
    thread = threading.Thread(target=recorder.end, args=(task,))
    thread.start()
    thread.join()
    left_open.append(begin(f"waits {count}", int(EventFlag.ASYNC)))
    if len(left_open) > 5:
        recorder.end(left_open.pop(0))


def keep(batch):
    for event in list(batch.events())[: batch.closed]:
        assert event.event_id not in rows, f"{event.name} came out twice"
        rows[event.event_id] = event
    for opened in batch.opened:
        assert opened.event_id not in announced, f"{opened.name} was announced twice"
        announced[opened.event_id] = opened


recorder.set_context_reader(lambda: ContextReading(1, count + 1, 1, 0))
record_all = 1023
"""

DRAIN = (
    RECORD
    + """
batch = [None]


def drain():
    batch[0] = recorder.drain(open_ranges=count % 2 == 0)


recorder.start(record_all, 8 << 20)
record()
failed = 0
for fail in (1, 5):
    for raised in each_failure(drain, fail):
        assert raised is None or isinstance(raised, MemoryError), repr(raised)
        failed += raised is not None
        if batch[0] is not None:
            keep(batch[0])
        batch[0] = None
        record()
    keep(batch[0])
    batch[0] = None
recorder.stop()
keep(recorder.drain(close_open=True))
counters = recorder.counters()
assert failed > 15, failed
tops = {row.event_id for row in rows.values() if row.kind == EventKind.RANGE and not row.parent}
assert tops == set(announced), tops ^ set(announced)
assert counters.recorded == len(rows), (counters, len(rows))
assert sum(counters) == counters.recorded, counters
for row in rows.values():
    if row.name.startswith("inner"):
        assert rows[row.parent].name == "outer " + row.name.split()[1], row
        assert row.sequence_nr == int(row.name.split()[1]) and row.debug_handle == 5
        assert row.error == ("ValueError: wrong" if row.name.endswith("1") and row.name.split()[2] == "1" else "")
    if row.name.startswith("outer"):
        assert row.shapes == "[[2,3]]" and row.context.span_id == int(row.name.split()[1]) + 1, row
"""
)

LAST_DRAIN = (
    RECORD
    + """
batch = [None]


def drain():
    batch[0] = recorder.drain(close_open=True)


def start_and_record():
    recorder.start(record_all, 8 << 20)
    record()
    recorder.stop()


def keep_all():
    while batch[0] is not None:
        more, batch[0] = batch[0], None
        keep(more)
        if not more.complete:
            drain()
    del left_open[:]


def check_balance(told):
    counters = recorder.counters()
    assert counters.recorded == len(rows) + counters.lost_in_drain, (counters, len(rows), told)


start_and_record()
for fail in (1, 3, 5):  # where one fails, so do the next ones, also those of giving up what was drained
    for raised in each_failure(drain, fail, one_by_one=2_000):
        assert raised is None or isinstance(raised, MemoryError), repr(raised)
        keep_all()
        start_and_record()  # begins with what the failed drain has left
        drain()
        keep_all()
        check_balance((fail, raised))
        start_and_record()
    keep_all()
    start_and_record()
drain()
keep_all()
start_and_record()
with_failures(drain, fail=1_000_000, smallest=1024)
drain()  # there was not even memory for giving it up
keep_all()
assert recorder.counters().lost_in_drain > 0
check_balance("all failed")
"""
)

RECORDING = (
    RECORD
    + """
ids = []


def work():
    ids.append(begin("outer", shapes="[[2,3]]"))
    ids.append(begin("task", int(EventFlag.ASYNC)))
    recorder.mark("moment")
    recorder.end(ids[-1])
    ids.append(begin("inner"))
    recorder.end(ids[-1], "ValueError: wrong")
    recorder.end(ids[-3])


recorder.start(record_all, 8 << 20)
record()
failed = 0
# One at a time, and not the thread's first context: CPython itself crashes in ContextVar.set where two fail, or that one.
for raised in each_failure(work):
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    failed += 1
    for event_id in ids:
        recorder.end(event_id)
    ids.clear()
begin("last")
recorder.stop()
keep(recorder.drain(close_open=True))
counters = recorder.counters()
assert failed > 15, failed
assert counters.recorded == len(rows), (counters, len(rows))
"""
)

SESSION = (
    RECORD
    + """
from otel_recfn.batches.selection import Selected
from otel_recfn.session import drain_thread
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.model.errors import OUT_OF_MEMORY

drain_thread.DRAIN_SECONDS = drain_thread.BUSY_DRAIN_SECONDS = 1_000.0  # what is recorded is drained by flush() alone
session = Session(recorder, [])
first, second, other = InMemorySink(10**6), InMemorySink(10**6), InMemorySink(10**6)
first.name, second.name, other.name = "first", "second", "other"
capture = Capture(Selected(), [first, second], buffer_bytes=8 << 20)
beside = Capture(Selected(scopes=1 << 7), [other], buffer_bytes=8 << 20)


def flush():
    session.flush(capture, 300)


def each_flush(fail):
    global failed
    for raised in each_failure(flush, fail):
        failed += 1
        assert raised is None or isinstance(raised, OUT_OF_MEMORY), repr(raised)
        record()


failed = 0
session.start(capture)
record()
each_flush(1)
each_flush(4)
session.start(beside)
each_flush(1)
each_flush(4)
session.stop(beside, 300)
session.stop(capture, 300)
assert failed > 50, failed
recorded, counts = recorder.counters(), session.counters(capture)
assert counts["rows"] + recorded.lost_in_drain == recorded.recorded, (counts, recorded)
for sink, counts in ((first, counts), (second, counts), (other, session.counters(beside))):
    ids = {event.event_id for event in sink.events()}
    assert len(ids) == len(sink.events()) == counts[f"{sink.name}.rows"] > 0
    assert len(ids) + counts.get(f"{sink.name}.missed", 0) == counts["rows"], counts
"""
)

SINKS = """
import gzip
import itertools
import json
import logging
import os
import sys
from dataclasses import replace

logging.disable(logging.CRITICAL)
sys.path.insert(0, "{tests}")
from batches import make_batch
from failing_allocations import each_failure
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from otel_recfn.session.capture import Capture
from otel_recfn.model.batch import SpanContextRef
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.model.scope import RecordScope
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.chrome import sink as chrome_sink
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.batches.selection import Selected

chrome_sink.FIRST_PAUSE_SECONDS = 0.0  # each failure meets a batch that is written


class Kept(SpanProcessor):  # needs no memory for keeping spans: the list has room for twice as many as it has items
    def __init__(self):
        self.spans = [None] * 200_000
        del self.spans[100_000:]
        self.on_end = self.spans.append


kept = Kept()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(kept)
sinks = {{
    "spans": lambda: SpansSink(provider, roots_per_second=None),
    "folded_spans": lambda: SpansSink(provider, roots_per_second=None, volume=Volume(3, 2, 20)),
    "spans_in_background": lambda: BackgroundSink(SpansSink(provider, roots_per_second=None), max_share=1.0),
    "background": lambda: BackgroundSink(InMemorySink(10**6)),
    "chrome_trace": lambda: ChromeTraceSink("trace.json"),
    "chrome_trace_gz": lambda: ChromeTraceSink("trace.json.gz"),
    "in_memory": lambda: InMemorySink(10**6),
}}
sink = sinks[sys.argv[1]]()
capture = Capture(Selected(), [sink], buffer_bytes=1 << 20, open_range_s=1e-9)
numbers = itertools.count(1)


def batch(more=True):
    number = next(numbers)
    first = make_event_id(1, 10 * number)
    context = SpanContextRef(5, 6, 1) if number % 2 else SpanContextRef(0, 0, 0)
    leaf = {{"parent": first, "context": context, "name": f"leaf {{first}}"}}
    rows = [{{**leaf, "event_id": first + row, "sequence_nr": first if row == 1 else -1}} for row in range(1, 5)]
    backward = {{"scope": RecordScope.BACKWARD_FUNCTION, "forward_thread_id": 1, "sequence_nr": first}}
    rows.append({{"event_id": first + 6, "parent": first, "context": context, "name": "backward", **backward}})
    if more and context.trace_id:  # what it lies in ends with the batch after the next one
        around = first + 20
        rows.append({{"event_id": first + 5, "parent": around, "root": around, "context": context, "name": "early"}})
    rows.append({{"event_id": first, "context": context, "shapes": "[[2]]", "error": "ValueError: wrong"}})
    outer = {{"event_id": first + 30, "context": context, "name": "hangs", "flags": EventFlag.PARTIAL}}
    hang = [{{**outer, "event_id": first + 31, "parent": first + 30}}, outer] if more else []
    made = make_batch([*rows, *hang], [] if context.trace_id else [{{"event_id": first, "name": "top"}}])
    return replace(made, closed=len(rows))


made = [None]
given = 0


def write():
    capture.write(made[0], look=True)


def next_batch(more=True):
    global given
    made[0] = batch(more)
    given += made[0].closed


next_batch()
write()
next_batch()
failed = 0
for fail in (1, 4):
    for raised in each_failure(write, fail):
        failed += 1
        assert raised is None or isinstance(raised, OUT_OF_MEMORY), repr(raised)
        if raised is not None:  # it was not taken
            write()
        next_batch()
        assert not capture._removed, capture._removed[0][1]
    next_batch()
write()
for _ in range(3):
    next_batch(more=False)
    write()
assert capture.flush(300)
capture.close(20)
counters = capture.counters()
name = sink.name
missed = counters.get(f"{{name}}.missed", 0)
assert failed > 10, failed
assert counters["rows"] == given
assert not capture._removed
if name == "spans":
    own = sink.counters()
    fates = ("spans", "folded", "folding", "unsampled", "suppressed", "no_provider", "other_kinds", "failed")
    assert own["rows"] + own.get("queue_dropped", 0) + missed == counters["rows"]
    assert not missed or isinstance(sink, SpansSink), missed
    assert own["rows"] + own["roots"] + own["summaries"] + own["open_ranges"] == sum(own[fate] for fate in fates), own
    assert not own["folding"]
    assert own["open_ranges"] > 2
    spans = kept.spans[100_000:]
    assert own["spans"] == len(spans) > 0
    there = {{(span.context.trace_id, span.context.span_id) for span in spans}} | {{(5, 6)}}
    assert len(there) == len(spans) + 1
    orphans = [span for span in spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]
    assert not orphans, (len(orphans), [(span.name, span.attributes) for span in orphans[:9]])
elif name == "in_memory":
    received = counters.get("in_memory.rows_received", counters["in_memory.rows"])
    assert received + missed == counters["rows"]
    assert counters["in_memory.rows"] == len(getattr(sink, "_inner", sink).events())
    assert counters["in_memory.rows"] > 0
else:
    assert counters["chrome_trace.events_written"] + counters["chrome_trace.failed"] + missed == counters["rows"]
    assert counters["chrome_trace.events_written"] > 0
    with (gzip.open if sys.argv[1].endswith("gz") else open)(sink.path, "rb") as file:
        shown = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    assert len(shown) == counters["chrome_trace.events_written"]
    assert len({{event["args"]["Event id"] for event in shown}}) == len(shown)
"""


BACKGROUND = """
import logging

logging.disable(logging.CRITICAL)
sys.path.insert(0, "{tests}")
from batches import make_batch
from failing_allocations import fail_next_allocations
from otel_recfn.batches.selection import Selected
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.in_memory import InMemorySink


class FailsInItsThread(InMemorySink):
    succeed = 1_000_000

    def write(self, batch):
        fail_next_allocations(self.succeed)  # until the next call: also what the thread does after this one
        super().write(batch)


inner = FailsInItsThread(10**6)
sink = BackgroundSink(inner, max_share=1.0)
capture = Capture(Selected(), [sink], buffer_bytes=1 << 20)
given = 0
for inner.succeed in range(150):
    capture.write(make_batch([{{}}] * 3))
    given += 3
    capture.flush_beside_writes(0.05)  # in vain where the thread finds no memory for it
inner.succeed = 1_000_000
capture.write(make_batch([{{}}] * 3))
given += 3
assert capture.flush_beside_writes(300)
counts = capture.counters()
assert counts["rows"] == given and "in_memory.missed" not in counts, counts
assert counts["in_memory.rows_received"] == given, counts
assert counts["in_memory.rows"] + counts["in_memory.queue_dropped"] == given, counts
assert len(inner.events()) == counts["in_memory.rows"] > 0
assert 0 < counts["in_memory.queue_dropped"] < given, counts
capture.close(300)
assert capture.counters()["in_memory.abandoned"] == 0
"""


ENDS = (
    RECORD
    + """
import os

DEPTH = 200


def opened():
    recorder.start(record_all, 8 << 20)
    return [begin(f"range {number}") for number in range(DEPTH)]


def end_all():
    for event_id in reversed(ids):
        recorder.end(event_id)


ids, failed = opened(), 0
before = recorder.counters()
for raised in each_failure(end_all):
    if raised is not None:  # the loop found no memory
        end_all()
    recorder.stop()
    rows = recorder.drain(close_open=True)
    left_open = sum([1 for row in rows.events() if row.flags & EventFlag.PARTIAL])
    after = recorder.counters()
    assert (len(rows), left_open) == (DEPTH, after.lost_ends - before.lost_ends), (len(rows), left_open, before, after)
    failed += left_open
    ids, before = opened(), after
assert failed > 0 or os.environ["OTEL_RECFN_RECORDER"] == "native"
"""
)


CAPTURES = """
import logging
import os
import sys
import threading
import time

logging.disable(logging.CRITICAL)

from failing_allocations import each_failure, keep_code_of_others
from opentelemetry import context
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.recording.backend import recorder

WRAPPED = [(context._RUNTIME_CONTEXT, name) for name in ("attach", "detach", "get_current")]
PATIENCE_S = 60
names = []


class Instrumentor(OtelRecordFunctionInstrumentor):  # importlib's look at torch's metadata would be most of it
    def instrumentation_dependencies(self):
        return ()


class Profile:
    def start(self):
        self.prof = None
        self.prof = profile()
        self.prof.start()

    def stop(self):
        if self.prof is not None:
            self.prof.stop()

    def names(self):
        return [event.name for event in self.prof.events()]

    def counters(self):
        return self.prof.counters()


class Instrument:
    def __init__(self):
        self.instrumentor = Instrumentor()

    def start(self):
        self.sink = InMemorySink()
        self.instrumentor.instrument(sinks=[self.sink])
        if not self.instrumentor.is_instrumented_by_opentelemetry:
            raise MemoryError

    def stop(self):
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()

    def names(self):
        return [event.name for event in self.sink.events()]

    def counters(self):
        counters = self.instrumentor.counters()
        return {name: count for name, count in counters.items() if name.startswith(("recorder.", "in_memory."))}


def lost():
    losses = ("dropped", "lost_ends", "lost_in_drain", "missed")
    return sum([count for name, count in capture.counters().items() if name.rpartition(".")[2] in losses])


def ours():
    return [thread for thread in threading.enumerate() if "recfn" in thread.name and thread.is_alive()]


def check_that_nothing_is_left(beside):
    assert recorder().recording == beside
    assert beside or [getattr(*wrapped) for wrapped in WRAPPED] == plain
    until = time.monotonic() + PATIENCE_S
    while len(ours()) > beside:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.001)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def check_the_next_one():
    for one in (Profile(), Instrument()):
        one.start()
        with record_function("after it"):
            pass
        one.stop()
        names.append(one.names())


def check_the_next_ones():
    # In another thread: it would wait for a lock that was left taken.
    names.clear()
    thread = threading.Thread(target=check_the_next_one, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert names == [["after it"], ["after it"]], names


plain = [getattr(*wrapped) for wrapped in WRAPPED]
def in_it():
    with record_function("in it"):
        pass


def starts():
    for raised in each_failure(capture.start, fail):
        assert raised is None or isinstance(raised, MemoryError), repr(raised)
        if raised is None:
            in_it()
        capture.stop()
        assert raised is not None or capture.names() == ["in it"], capture.names()
        yield raised is not None
    capture.stop()


def stops():
    capture.start()
    in_it()
    before = lost()
    for raised in each_failure(capture.stop, fail):
        assert raised is None, repr(raised)
        assert len(capture.names()) + lost() - before == 1, (capture.names(), before, capture.counters())
        yield capture.names() == ["in it"]
        capture.start()
        in_it()
        before = lost()


capture = {"profile": Profile, "instrument": Instrument}[sys.argv[1]]()
fail, beside = int(sys.argv[2]), sys.argv[3] == "beside"
capture.start()
capture.stop()
check_the_next_ones()
keep_code_of_others()
descriptors = len(os.listdir("/proc/self/fd"))
standing = profile()
if beside:
    standing.start()
count = 0
for failing in (starts, stops):
    notable = 0
    for was_notable in failing():
        count += 1
        notable += was_notable
        check_that_nothing_is_left(beside)
        check_the_next_ones()
    assert notable > 15, (failing, notable)
if beside:
    standing.stop()
    found = [event.name for event in standing.events()]
    assert found.count("after it") == 2 * count, (found.count("after it"), count)
    check_that_nothing_is_left(False)
"""


FOLD = """
import random

import numpy as np
from failing_allocations import each_failure
from otel_recfn.batches.fold.native_fold import NativeFold
from otel_recfn.batches.fold.unit import LINKABLE
from otel_recfn.model.events import EventFlag, make_event_id

draw, rows, open_ranges, begun = random.Random(1), [], [], 0
for clock in range(6000):
    if open_ranges and (len(open_ranges) == 7 or draw.random() < 0.5):
        event_id, start = open_ranges.pop()
        parent, flags = open_ranges[-1][0] if open_ranges else 0, draw.choice((0, 0, 0, LINKABLE, int(EventFlag.ASYNC)))
        unit = clock % 2 if draw.random() < 0.1 else 0
        rows.append((unit, event_id, parent, draw.randrange(1, 300), start, clock - start, flags))
    else:
        begun += 1
        open_ranges.append((make_event_id(1, begun), clock))
kinds = (np.uint32, np.uint64, np.uint64, np.uint32, np.int64, np.int64, np.uint32)
columns = [np.array(column, kind) for column, kind in zip(zip(*rows), kinds)]
fold, told, added = None, None, 0


def first_rows():
    global fold, added
    fold = NativeFold(100, 0, 1 << 40)
    added = fold.add(*columns, 0)


def finish():
    global told
    told = fold.finish([1, 0], [90, 50], [False, True])


def ended():
    finish()
    return [bytes(column) for column in told] + [bytes(column) for column in fold.finish([0], [5], [False])]


first_rows()
assert added == len(rows)
expected, cut, raising = ended(), 0, 0
fold, added = None, 0
for raised in each_failure(first_rows):
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    if fold is None:
        continue
    cut, raising = cut + (0 < added < len(rows)), raising + (raised is not None)
    assert sum(fold.rows([0, 1])) == added
    while added < len(rows):
        added += fold.add(*[column[added:] for column in columns], added)
    assert ended() == expected
    fold, added = None, 0
assert cut > 10 and raising, (cut, raising)

first_rows()
failed = 0
for raised in each_failure(finish):
    if raised is None:  # it did without
        break
    assert isinstance(raised, MemoryError), repr(raised)
    failed += 1
assert failed > 10, failed
again = [bytes(column) for column in told] + [bytes(column) for column in fold.finish([0], [5], [False])]
assert again == expected
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    path = tmp_path_factory.mktemp("failing") / "failing_allocations.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "failing_allocations.c")], check=True)
    return path


@pytest.fixture(params=RECORDERS)
def run_failing(
    request: pytest.FixtureRequest, library: Path, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in which allocations can be made to fail, with each recorder."""

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        head = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        return run_program(
            head + program + LEAVE,
            *arguments,
            LD_PRELOAD=str(library),
            PYTHONMALLOC="malloc",
            OTEL_RECFN_RECORDER=request.param,
            **environment,
        )

    return run


def test_a_drain_delivers_later_what_it_could_not_deliver(run_failing: Callable[..., object]) -> None:
    run_failing(DRAIN)


def test_the_last_drain_delivers_or_counts(run_failing: Callable[..., object]) -> None:
    run_failing(LAST_DRAIN)


def test_what_begins_and_ends_without_memory_is_recorded_or_counted(run_failing: Callable[..., object]) -> None:
    run_failing(RECORDING)


def test_an_end_without_memory_is_recorded_or_counted_as_lost(run_failing: Callable[..., object]) -> None:
    run_failing(ENDS)


def test_what_is_drained_goes_to_every_capture_or_is_counted(run_failing: Callable[..., object]) -> None:
    run_failing(SESSION)


@pytest.mark.parametrize(
    "sink", ["spans", "folded_spans", "spans_in_background", "background", "chrome_trace", "chrome_trace_gz", "in_memory"]
)
def test_a_sink_goes_on_and_counts_what_it_found_no_memory_for(run_failing: Callable[..., object], sink: str) -> None:
    run_failing(SINKS.format(tests=HERE.parent), sink)


@pytest.mark.parametrize(
    ("capture", "beside", "fail"), [("profile", "beside", 1), ("profile", "alone", 5), ("instrument", "alone", 1)]
)
def test_a_capture_without_memory_starts_or_raises_and_always_ends(
    run_failing: Callable[..., object], capture: str, beside: str, fail: int
) -> None:
    run_failing(CAPTURES, capture, str(fail), beside, FAULT_SECONDS=str(SOAK))


def test_the_thread_of_a_sink_goes_on_and_counts_what_it_found_no_memory_for(run_failing: Callable[..., object]) -> None:
    run_failing(BACKGROUND.format(tests=HERE.parent))


@pytest.mark.skipif("native" not in RECORDERS, reason="there is no native part here")
def test_folding_takes_a_row_in_whole_or_not_and_tells_of_all_later(library: Path, run_program: Callable[..., object]) -> None:
    head = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
    run_program(head + FOLD + LEAVE, LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
