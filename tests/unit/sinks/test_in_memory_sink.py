"""The in-memory sink keeps the newest events, in order of their starts, and counts what it
dropped.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, make_batch
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.in_memory import InMemorySink


def named(*names: str, start: int = 1) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "event_id": make_event_id(1, start + index),
            "start_ns": BASE_NS + start + index,
        }
        for index, name in enumerate(names)
    ]


def test_events_come_in_start_order() -> None:
    sink = InMemorySink()
    sink.write(make_batch([*named("child", start=5), *named("parent", start=1)]))
    assert [event.name for event in sink.events()] == ["parent", "child"]


def test_parent_precedes_child_that_starts_with_it() -> None:
    sink = InMemorySink()
    rows = [
        {"name": "child", "event_id": make_event_id(1, 2)},
        {"name": "parent", "event_id": make_event_id(1, 1)},
    ]
    sink.write(make_batch([{**row, "start_ns": BASE_NS} for row in rows]))
    assert [event.name for event in sink.events()] == ["parent", "child"]


@given(sizes=st.lists(st.integers(0, 7), max_size=8), most=st.integers(0, 12))
def test_keeps_the_newest_and_counts_the_rest(sizes: list[int], most: int) -> None:
    sink = InMemorySink(max_events=most)
    ordinals = []
    for size in sizes:
        start = len(ordinals) + 1
        sink.write(make_batch(named(*["op"] * size, start=start)))
        ordinals += range(start, start + size)
    kept = [event.event_id for event in sink.events()]
    assert kept == [
        make_event_id(1, ordinal) for ordinal in ordinals[max(0, len(ordinals) - most) :]
    ]
    assert sink.counters() == {"dropped.store_full": len(ordinals) - len(kept)}


def test_clear_forgets_and_goes_on() -> None:
    sink = InMemorySink()
    sink.write(make_batch(named("before")))
    sink.clear()
    sink.write(make_batch(named("after", start=2)))
    assert [event.name for event in sink.events()] == ["after"]
    assert sink.counters() == {"dropped.store_full": 0}


def test_forked_child_starts_empty() -> None:
    sink = InMemorySink(max_events=3)
    sink.write(make_batch(named("op")))
    child = sink.after_fork_in_child()
    assert isinstance(child, InMemorySink)
    assert (child.events(), len(child.rows()), child.counters()) == (
        [],
        0,
        {"dropped.store_full": 0},
    )
