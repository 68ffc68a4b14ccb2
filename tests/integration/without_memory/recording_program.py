"""What the programs begin with in which a recorder finds no memory."""

from __future__ import annotations

RECORD = """
import threading
from failing_allocations import each_failure, with_failures
from otel_recfn.model.events import EventFlag, EventKind
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import ContextReading

count = 0
left_open = []
rows = {}
announced = {}


def begin(name, flags=0, **columns):
    return recorder.begin(name, 7, 1, flags=flags, **columns)


def end_elsewhere(task):
    thread = threading.Thread(target=recorder.end, args=(task, "ValueError: elsewhere"))
    thread.start()
    thread.join()


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
    end_elsewhere(task)
    left_open.append(begin(f"waits {count}", int(EventFlag.ASYNC)))
    if len(left_open) > 5:
        recorder.end(left_open.pop(0))


def keep(batch):
    events = list(batch.events())
    for copy in events[batch.closed :]:
        assert (copy.flags & ~EventFlag.ASYNC, copy.error) == (EventFlag.PARTIAL, ""), f"{copy.name} has not ended"
    for event in events[: batch.closed]:
        assert event.event_id not in rows, f"{event.name} came out twice"
        rows[event.event_id] = event
    for opened in batch.opened:
        assert opened.event_id not in announced, f"{opened.name} was announced twice"
        announced[opened.event_id] = opened


recorder.set_context_reader(lambda: ContextReading(1, count + 1, 1, 0))
record_all = 1023
"""
