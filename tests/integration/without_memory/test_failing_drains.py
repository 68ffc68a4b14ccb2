"""Every single allocation of a drain fails once: what it could not deliver comes later, or is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from recording_program import RECORD

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
    if row.name.startswith("task"):
        assert row.error == "ValueError: elsewhere" and row.end_thread.number != row.thread.number, row
    if row.name.startswith("outer"):
        assert row.shapes == "[[2,3]]" and row.context.span_id == int(row.name.split()[1]) + 1, row
"""
)

ROWS_THAT_GROW = (
    RECORD
    + """
from failing_allocations import COARSE
MORE_THAN_ARE_KEPT = 33_000  # rows: their memory is given back, so that the next drain needs new one
batch = [None]


def drain():
    batch[0] = None
    batch[0] = recorder.drain(open_ranges=True)


def prepare():
    for _ in range(MORE_THAN_ARE_KEPT):
        recorder.end(begin("one of many"))
    assert len(recorder.drain()) >= MORE_THAN_ARE_KEPT
    rows.clear(), announced.clear()
    end_elsewhere(begin("task", int(EventFlag.ASYNC)))


def check():
    if batch[0] is None:
        drain()
    keep(batch[0])
    if not batch[0].complete:
        keep(recorder.drain())
    [row] = [row for row in rows.values() if row.name == "task"]
    assert row.error == "ValueError: elsewhere" and row.flags & EventFlag.ERROR, row


recorder.start(record_all, 8 << 20)
prepare()
for raised in each_failure(drain, fineness=COARSE):
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    check()
    prepare()
check()
"""
)

FEW_ROWS_AT_ONCE = (
    RECORD
    + """
MANY, MUCH = 40_000, 1 << 20  # rows, bytes: what all rows need at once
came = []


def drain():
    batch = recorder.drain()
    came.append(len(batch))


for plain in (0, 1_000):  # rows, before those with what few rows have
    for succeed in range(4):
        recorder.start(record_all, 64 << 20)
        for number in range(MANY):
            recorder.end(begin("one of many", debug_handle=-1 if number < plain else 5))
        recorder.stop()
        del came[:]
        while sum(came) < MANY:
            before = sum(came)
            raised, failed = with_failures(drain, succeed, 1_000_000, MUCH)
            assert raised is None and sum(came) > before, (plain, succeed, raised, came)
"""
)

LAST_DRAIN = (
    RECORD
    + """
from failing_allocations import ALL
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
    for raised in each_failure(drain, fail, fineness=ALL):
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


STOP = (
    RECORD
    + """
from otel_recfn.recording.watched import Watched


def stopped(succeed, fail):
    recorder.start(record_all, 8 << 20)
    recorder.end(begin("recorded"))
    raised, failed = with_failures(recorder.stop, succeed, fail)
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    if raised is not None:
        recorder.stop()
    assert not recorder.recording and not Watched.now
    assert not begin("too late")
    return failed


assert not stopped(0, 10**6)
assert len(recorder.drain(close_open=True)) > 0
"""
)


def test_a_drain_delivers_later_what_it_could_not_deliver(run_failing: Callable[..., object]) -> None:
    run_failing(DRAIN)


def test_a_range_that_could_not_end_yet_is_open_as_before(run_failing: Callable[..., object]) -> None:
    run_failing(ROWS_THAT_GROW)


def test_rows_come_in_several_drains_where_there_is_no_memory_for_all(run_failing: Callable[..., object]) -> None:
    run_failing(FEW_ROWS_AT_ONCE)


def test_the_last_drain_delivers_or_counts(run_failing: Callable[..., object]) -> None:
    run_failing(LAST_DRAIN)


@pytest.mark.one_python  # what a call of a Python function wants differs
def test_a_recorder_stops_without_memory(run_failing: Callable[..., object]) -> None:
    run_failing(STOP)
