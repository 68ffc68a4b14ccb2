"""What only the Python twin says about itself."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

from recording_helpers import CROSSING, PARTIAL, Capture, workers_of

from otel_recfn.recording.python import ranges
from otel_recfn.recording.python.log import BYTES_PER_RANGE
from otel_recfn.recording.python.recorder import PythonRecorder
from otel_recfn.recording.python.text import clean_text
from otel_recfn.recording.watched import Watched
from patience import PATIENCE_S
from thoroughness import one_in


def test_ranges_that_nobody_records_import_no_numpy() -> None:
    script = (
        "import sys; from otel_recfn.recording.python.recorder import PythonRecorder\n"
        "recorder = PythonRecorder()\n"
        "with recorder.record_function('range'): pass\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)


def test_the_capacity_is_what_was_asked_for() -> None:
    capture = Capture(PythonRecorder(), buffer_bytes=10 * BYTES_PER_RANGE)
    for _ in range(15):
        capture.end(capture.begin())
    assert (capture.counters().recorded, capture.counters().dropped) == (10, 5)
    capture.drain()
    nested = [capture.begin() for _ in range(15)]
    assert [bool(event_id) for event_id in nested] == [True] * 10 + [False] * 5


def test_ends_that_find_their_queue_full_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(ranges, "MAX_REMOTE_ENDS", 2)
    capture = Capture(PythonRecorder())
    ids = [capture.begin() for _ in range(5)]
    with workers_of(1) as [worker]:
        worker.call(lambda: [capture.end(event_id) for event_id in reversed(ids)])
    rows = capture.finish()
    assert capture.counters().lost_ends == 3
    assert [row.flags for row in rows] == [CROSSING, CROSSING, PARTIAL, PARTIAL, PARTIAL]


def test_threads_may_share_one_object_at_once() -> None:
    capture = Capture(PythonRecorder())
    shared, gate = capture.recorder.record_function("shared"), threading.Barrier(2, timeout=PATIENCE_S)

    def work() -> None:
        with shared:
            gate.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(row.flags & CROSSING for row in capture.finish())


def test_a_recorder_is_freed() -> None:
    recorder = PythonRecorder()
    recorder.start(1023, 1 << 20)
    with recorder.record_function("range"):
        pass
    recorder.drain()
    alive = weakref.ref(recorder)
    del recorder
    gc.collect()  # its parts know each other
    assert alive() is None
    assert not Watched.now


def test_state_of_threads_that_ended_is_freed() -> None:
    recorder = PythonRecorder()
    capture = Capture(recorder)
    for _ in range(10):
        thread = threading.Thread(target=lambda: capture.end(capture.begin()))
        thread.start()
        thread.join(PATIENCE_S)
    capture.drain()
    assert recorder._threads.look() == ([], [])
    assert recorder._drain._pairing is not None
    assert not recorder._drain._pairing._threads


def test_a_finalizer_that_records_in_the_middle_of_a_begin() -> None:
    """Collected garbage may end and begin ranges anywhere, also inside our own begin."""
    capture = Capture(PythonRecorder())

    def inner_begins() -> None:
        if len(ids) < 50:
            ids.append(capture.begin("nested"))
            capture.end(ids[-1])

    ids: list[int] = []
    capture.recorder.set_context_reader(inner_begins)
    ids.append(capture.begin("outer"))
    capture.end(ids[-1])
    rows = capture.finish()
    assert len({row.event_id for row in rows}) == len(rows) == capture.counters().recorded


def test_counting_while_threads_come_and_go() -> None:
    capture = Capture(PythonRecorder())
    threads, done = 300, threading.Event()
    counted: list[int] = []

    def count() -> None:
        while not done.is_set():
            counted.append(capture.counters().recorded)

    def work() -> None:
        capture.end(capture.begin())

    with workers_of(1) as [counter]:
        counting = threading.Thread(target=counter.call, args=(count,))
        counting.start()
        for _ in range(threads):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(PATIENCE_S)
            capture.drain()
        done.set()
        counting.join(PATIENCE_S)
    assert counted == sorted(counted)
    assert counted[-1] <= capture.counters().recorded == threads


INTERRUPTED_DRAINS = """
import signal

from otel_recfn.recording.python.recorder import PythonRecorder

recorder = PythonRecorder()
batches, interrupted = [], 0


def interrupt(number, frame):
    while frame is not None:
        if "/recording/python/" in frame.f_code.co_filename and frame.f_code.co_name != "drain":
            raise KeyboardInterrupt
        frame = frame.f_back


signal.signal(signal.SIGALRM, interrupt)
recorder.start(1023, 1 << 20)
recorder.drain()
for turn in range(400):
    with recorder.record_function("outer"):
        for _ in range(20):
            with recorder.record_function("inner"):
                pass
        recorder.mark("moment")
    signal.setitimer(signal.ITIMER_REAL, 0.00005 + turn % 50 * 0.00004)
    try:
        batches.append(recorder.drain())
    except KeyboardInterrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
batches.append(recorder.drain())
rows = [event for batch in batches for event in batch.events()]
assert interrupted > 20, interrupted
assert len(rows) == len({row.event_id for row in rows}) == recorder.counters().recorded == 400 * 22, len(rows)
outers = {row.event_id for row in rows if row.name == "outer"}
assert all(row.parent in outers for row in rows if row.name != "outer")
assert sum(len(batch.opened) for batch in batches) == 400
"""


def test_a_drain_that_a_signal_handler_interrupts_delivers_later() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED_DRAINS], check=True, timeout=PATIENCE_S)


INTERRUPTED_RANGES = """
import signal

from otel_recfn.recording.python.recorder import PythonRecorder

OURS = {"_record", "_find_parent", "begun", "push", "end", "_end", "ended", "_leave", "_take_innermost"}
recorder = PythonRecorder()
record_function = recorder.record_function
interrupted, left_open = 0, []
called = False


def interrupt(number, frame):
    global called
    called = True
    if frame.f_code.co_name in OURS and "/recording/python/" in frame.f_code.co_filename:
        raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
recorder.start(1023, 1 << 20)
recorder.drain()
for turn in range(turns):
    called = False
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + turn % 37 * 0.00002)
    try:
        while not called:
            with record_function("outer"), record_function("inner"):
                pass
    except KeyboardInterrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    with record_function("after"):
        pass
    left_open += [event.parent for event in recorder.drain().events() if event.name == "after" and event.parent]
recorder.stop()
assert interrupted > turns // 16, interrupted
assert not left_open, (interrupted, left_open)
assert not len(recorder.drain(close_open=True))
"""


def test_a_range_that_a_signal_handler_interrupts_is_not_left_open() -> None:
    program = f"turns = {800 // one_in()}\n{INTERRUPTED_RANGES}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_text_is_cut_at_a_character() -> None:
    assert clean_text("aä", 2) == "a"
    assert clean_text("aä", 3) == "aä"
    assert clean_text("\udcff", 3) == "\\ud"


def test_asking_for_a_threads_id_is_not_its_first_range() -> None:
    recorder = PythonRecorder()
    recorder.current_thread_id()
    recorder.start(1023, 1 << 20)
    assert all(recorder.begin("load", 7, 1) for _ in range(3))
