"""Every single allocation of a drain, and of each sink, fails once: nothing raises into the program, all counters balance."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_recfn.recording import backend

HERE = Path(__file__).parent
RECORDERS = ["python", *(["native"] if backend.choose().kind == "native" else [])]
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library that lets allocations fail is for glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the library that lets allocations fail has to be compiled"),
]

RECORD = """
import threading
from failing_allocations import each_failure, with_failures
from otel_recfn.model.events import EventFlag
from otel_recfn.recording import backend
from otel_recfn.recording.protocol import ContextReading

recorder = backend.recorder()
count = 0
left_open = []
rows = {}


def begin(name, flags=0, **columns):
    return recorder.begin(name, 7, 1, flags=flags, **columns)


def record():
    global count
    count += 1
    recorder.context_changed()
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
assert failed > 20, failed
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


start_and_record()
for fail in (1, 5):
    for raised in each_failure(drain, fail):
        assert raised is None or isinstance(raised, MemoryError), repr(raised)
        while batch[0] is not None:
            more, batch[0] = batch[0], None
            keep(more)
            if not more.complete:
                drain()
        del left_open[:]
        start_and_record()
    keep(batch[0])
    batch[0] = None
    start_and_record()
drain()
keep(batch[0])
start_and_record()
with_failures(drain, fail=1_000_000, smallest=1024)
keep(recorder.drain(close_open=True))  # there was not even memory for giving it up
counters = recorder.counters()
assert counters.lost_in_drain > 0
assert counters.recorded == len(rows) + counters.lost_in_drain, (counters, len(rows))
"""
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    path = tmp_path_factory.mktemp("failing") / "failing_allocations.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "failing_allocations.c")], check=True)
    return path


@pytest.fixture(params=RECORDERS)
def run_failing(
    request: pytest.FixtureRequest, library: Path, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program in which allocations can be made to fail, with each recorder."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        head = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        return run_program(head + program, LD_PRELOAD=str(library), PYTHONMALLOC="malloc", OTEL_RECFN_RECORDER=request.param)

    return run


def test_a_drain_delivers_later_what_it_could_not_deliver(run_failing: Callable[[str], object]) -> None:
    run_failing(DRAIN)


def test_the_last_drain_delivers_or_counts(run_failing: Callable[[str], object]) -> None:
    run_failing(LAST_DRAIN)
