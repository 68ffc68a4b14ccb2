"""How much of a processor a background thread takes."""

from __future__ import annotations

import math
import threading
import time

from gated import Gated, rows

from batches import make_batch
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.background_pace import Pace
from otel_recfn.sinks.background_queue import WorkQueue, Write
from patience import PATIENCE_S

ENDLESS = 1e-9
"""A share with which a rest lasts longer than any test."""
ENDLESS_S = 1e6


def work() -> None:
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass


def test_who_is_late_does_not_rest() -> None:
    pace = Pace(ENDLESS, lambda: True)
    work()
    pace()


def test_who_rests_goes_on_when_somebody_waits() -> None:
    pace = Pace(ENDLESS, lambda: False)

    def works() -> None:
        work()
        pace()

    resting = threading.Thread(target=works, daemon=True)
    resting.start()
    pace.hurry_up(+1)
    resting.join(PATIENCE_S)
    assert not resting.is_alive()


def test_who_owes_more_rests_for_longer() -> None:
    late = threading.Event()
    pace = Pace(1.0, late.is_set)
    pace.hurry_up(+1)
    pace(math.inf)  # who is waited for owes nothing
    pace.hurry_up(-1)
    resting = threading.Thread(target=pace, args=(ENDLESS_S,), daemon=True)
    resting.start()
    late.set()
    pace.go_on()
    resting.join(PATIENCE_S)
    assert not resting.is_alive()


def test_a_rest_ends_when_so_much_waits_that_some_might_have_to_be_dropped() -> None:
    inner = Gated()
    sink = BackgroundSink(inner, max_rows=8, max_share=ENDLESS)
    sink.write(rows(1))
    for _ in range(4):  # each fills more than half of the queue
        inner.entered.clear()
        sink.write(rows(5))
        assert inner.entered.wait(PATIENCE_S)
    sink.close(PATIENCE_S)
    assert inner.calls == ["write 1", *["write 5"] * 4, "close"]


def test_a_queue_fills_until_what_was_taken_is_written() -> None:
    queue = WorkQueue(max_rows=8)
    queue.put_batch(make_batch([{}] * 4))
    assert not queue.is_filling()
    queue.put_batch(make_batch([{}]))
    assert queue.is_filling()
    write = queue.next()
    assert isinstance(write, Write)
    assert queue.is_filling()
    queue.written(write)
    assert not queue.is_filling()
