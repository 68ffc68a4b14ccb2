"""Every single allocation where ranges begin and end fails once: they are recorded, or counted."""

from __future__ import annotations

from collections.abc import Callable

from recording_program import RECORD

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

ENDS = (
    RECORD
    + """
from failing_allocations import COARSE

DEPTH = 200


def opened():
    recorder.start(record_all, 8 << 20)
    return [begin(f"range {number}") for number in range(DEPTH)]


def end_all():
    for event_id in reversed(ids):
        recorder.end(event_id)


ids = opened()
before = recorder.counters()
for raised in each_failure(end_all, fineness=COARSE):
    if raised is not None:  # the loop found no memory
        end_all()
    recorder.stop()
    rows = recorder.drain(close_open=True)
    left_open = sum([1 for row in rows.events() if row.flags & EventFlag.PARTIAL])
    after = recorder.counters()
    assert (len(rows), left_open) == (DEPTH, after.lost_ends - before.lost_ends), (len(rows), left_open, before, after)
    ids, before = opened(), after
"""
)


def test_what_begins_and_ends_without_memory_is_recorded_or_counted(run_failing: Callable[..., object]) -> None:
    run_failing(RECORDING)


def test_an_end_without_memory_is_recorded_or_counted_as_lost(run_failing: Callable[..., object]) -> None:
    run_failing(ENDS)
