"""Whatever a background sink's threads do first, the program goes on in time, and no span arrives without its parent.

The orders are drawn, and played without clocks or sleeps (``turns.py``); ``scripts/explore_spans.py`` plays as many as one
likes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from explored import NoMemory, explore
from test_no_orphans import REQUEST, Sent, new_provider
from turns import Turns, replaced

from batches import BASE_NS, make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.spans import batch_writing, folding
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.pending import PendingBatches
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.support.thread_time import LOOK_S, LOOKS_AT_REST
from soak import SOAK

pytestmark = pytest.mark.one_python

OUTER, MIDDLE, INNER, LEAF = (make_event_id(1, number) for number in range(1, 5))
OPENED = [{"event_id": OUTER, "context": REQUEST}]


def row(event_id: int, parent: int, flags: int = 0) -> dict[str, Any]:
    times = {"start_ns": BASE_NS + (event_id & 0xFF), "end_ns": BASE_NS + 1000}
    return {"event_id": event_id, "parent": parent, "root": OUTER, "context": REQUEST, "flags": flags, **times}


def batch(*rows: dict[str, Any]) -> Batch:
    return make_batch(rows)


@pytest.mark.parametrize("seed", range(8))
def test_programs_in_random_orders(seed: int) -> None:
    for number in range(60 * SOAK):
        explore(random.Random(f"{seed} {number}").randrange)


def test_what_there_is_no_memory_to_tell_of_at_the_very_end_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SpansSink(new_provider(Sent()), volume=Volume(1000))
    sink.write(make_batch([row(LEAF, MIDDLE)], OPENED))
    memory = NoMemory()
    memory.replace(monkeypatch)
    assert sink.counters()["folding"] == 1
    memory.left = 1 << 30
    sink.close(1.0)
    counters = sink.counters()
    assert (counters["folding"], counters["failed"], counters["rows"]) == (0, 1, 1)


@pytest.fixture
def parts_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_ROWS_OF_A_UNIT", 2)


@pytest.fixture
def willing(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """The other threads go on wherever they can, when the test waits."""
    made = Turns(lambda count: count - 1)
    replaced(made, monkeypatch)
    return made


@pytest.mark.usefixtures("parts_of_two")
@pytest.mark.parametrize("dropped_by", ["queue", "sink"])
def test_the_outermost_range_of_a_part_that_was_sent_comes(willing: Turns, dropped_by: str) -> None:
    """The part says that its ranges lie in the outermost one, because what is between has not come."""
    sent = Sent()
    inner = SpansSink(new_provider(sent), volume=Volume(1000))
    sink = BackgroundSink(inner, max_rows=2)
    sink.write(make_batch([row(LEAF, INNER), row(INNER, MIDDLE)], OPENED))
    assert sink.flush(60.0)
    rest = batch(row(MIDDLE, OUTER), row(OUTER, 0))
    if dropped_by == "queue":
        sink.write(batch({"event_id": make_event_id(2, 1)}, {"event_id": make_event_id(2, 2)}))
        sink.write(rest)
    else:
        inner.give_up([rest], 1.0)
    sink.close(60.0)
    willing.finish()
    assert len(sent.spans) >= 4
    sent.assert_no_orphans()


@pytest.mark.usefixtures("parts_of_two")
def test_nothing_is_placed_in_an_outermost_range_that_was_dropped() -> None:
    """It was announced and is not among what is left: the queue dropped it."""
    sent = Sent()
    sink = SpansSink(new_provider(sent), volume=Volume(1000))
    sink.write(make_batch([], OPENED))
    shown = int(EventFlag.SHOWN)
    sink.give_up([batch(row(MIDDLE, 0, shown | EventFlag.ASYNC), row(INNER, MIDDLE, shown))], 1.0)
    sink.close(1.0)
    assert len(sent.spans) == 2
    sent.assert_no_orphans()


@pytest.mark.usefixtures("parts_of_two")
def test_nothing_is_placed_in_an_outermost_range_that_there_was_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for noting that it was dropped, at first."""
    sent, memory = Sent(), NoMemory()
    sink = SpansSink(new_provider(sent), volume=Volume(1000))
    sink.write(make_batch([], OPENED))
    for owner, name in ((batch_writing, "fates_of"), (StepTraces, "close_all")):
        monkeypatch.setattr(owner, name, memory._asking(getattr(owner, name)))
    memory.left = 2
    sink.write(batch(row(OUTER, 0)))
    sink.write(batch(row(LEAF, MIDDLE), row(INNER, MIDDLE)))
    sink.write(batch(row(MIDDLE, OUTER)))
    sink.close(1.0)
    assert (len(sent.spans), memory.left) == (3, 0)
    sent.assert_no_orphans()


@pytest.mark.usefixtures("parts_of_two")
def test_nothing_is_placed_in_an_outermost_range_that_was_dropped_behind_a_batch_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For memory: it announces the range."""
    sent, memory = Sent(), NoMemory()
    sink = SpansSink(new_provider(sent), volume=Volume(1000))
    monkeypatch.setattr(PendingBatches, "first", memory._asking(PendingBatches.first))
    memory.left = 2
    sink.write(make_batch([], OPENED))
    assert memory.left == 0
    sink.note_gap()
    sink.write(batch(row(LEAF, MIDDLE), row(INNER, MIDDLE)))
    sink.write(batch(row(MIDDLE, 0)))
    sink.close(1.0)
    assert len(sent.spans) == 3
    sent.assert_no_orphans()


@pytest.mark.parametrize("timeout_s", [0.5, 5.0, 60.0])
def test_a_close_waits_no_longer_than_it_may(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a thread that hangs where nobody can take its place; that it does is seen when the time is over."""
    turns = Turns(lambda _count: 0)
    replaced(turns, monkeypatch)
    inner = SpansSink(new_provider(Sent()))
    monkeypatch.setattr(inner, "write", lambda _batch: turns.wait_for(lambda: False, 1e9))
    sink = BackgroundSink(inner)
    sink.write(batch(row(OUTER, 0)))
    sink.close(timeout_s)
    assert turns.now == pytest.approx(timeout_s + LOOKS_AT_REST * LOOK_S)
