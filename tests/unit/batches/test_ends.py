"""Children stand before their parents, also those of other threads, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.ends import order_of_ends
from otel_recfn.model.events import make_event_id

OUTER = {"event_id": make_event_id(MAIN_THREAD.number, 1), "end_ns": BASE_NS + 9, "name": "outer"}
INNER = {
    "event_id": make_event_id(WORKER_THREAD.number, 1), "parent": OUTER["event_id"], "root": OUTER["event_id"],
    "thread": WORKER_THREAD, "end_ns": BASE_NS + 5, "name": "inner",
}  # fmt: skip


def test_a_range_comes_after_those_of_other_threads_in_it() -> None:
    batch = make_batch([OUTER, INNER])
    order = order_of_ends(batch)
    assert order is not None
    assert [row.name for row in batch.take(order).events()] == ["inner", "outer"]


def test_rows_in_the_order_of_their_ends_stay_as_they_are() -> None:
    assert order_of_ends(make_batch([INNER, OUTER])) is None


def test_a_batch_without_such_ranges_stays_as_it_is() -> None:
    assert order_of_ends(make_batch([OUTER, {"end_ns": BASE_NS}])) is None


def test_a_batch_with_ranges_that_are_open_stays_as_it_is() -> None:
    assert order_of_ends(replace(make_batch([OUTER, INNER]), closed=1)) is None
