"""The store joins batches; averages and self times follow from the rows together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.averages import key_averages, nesting, self_times
from otel_recfn.batches.merging import EventStore, merged
from otel_recfn.errors import SettingError
from otel_recfn.model.events import EventFlag, EventKind, make_event_id

pytestmark = pytest.mark.one_python


def row(ordinal: int, start: int, end: int, parent: int = 0, **columns: Any) -> dict[str, Any]:
    number = columns.get("thread", MAIN_THREAD).number
    return {
        "event_id": make_event_id(number, ordinal),
        "start_ns": BASE_NS + start,
        "end_ns": BASE_NS + end,
        "parent": make_event_id(MAIN_THREAD.number, parent) if parent else 0,
        **columns,
    }


TREE = [
    row(3, 20, 30, parent=2, name="inner"),
    row(2, 10, 60, parent=1, name="middle"),
    row(4, 70, 80, parent=1, name="inner"),
    row(1, 0, 100, name="outer"),
]


@given(cut=st.integers(0, len(TREE)))
def test_batches_join_whatever_their_tables(cut: int) -> None:
    first = make_batch([{**each, "context": context(1, 2)} for each in TREE[:cut]])
    second = make_batch([{**each, "context": context(1, 2)} for each in TREE[cut:]])
    whole = make_batch([{**each, "context": context(1, 2)} for each in TREE])
    # What a batch doesn't hold can't be its root.
    assert [(e.event_id, e.name, e.parent, e.context) for e in merged([first, second]).events()] == [
        (e.event_id, e.name, e.parent, e.context) for e in whole.events()
    ]


def test_a_thread_is_called_what_was_last_known_of_it() -> None:
    nameless = MAIN_THREAD._replace(name="")
    batches = [make_batch([row(1, 0, 1, thread=thread)]) for thread in (nameless, MAIN_THREAD, nameless)]
    assert {event.thread.name for event in merged(batches).events()} == {MAIN_THREAD.name}


def test_nothing_joined_is_an_empty_batch() -> None:
    assert len(merged([])) == 0
    assert len(key_averages(merged([]))) == 0


def test_self_time_is_what_direct_children_leave() -> None:
    batch = make_batch(TREE)
    assert self_times(batch, nesting(batch)).tolist() == [10, 40, 10, 40]


def test_what_runs_beside_a_range_takes_no_self_time_from_it() -> None:
    rows = [
        row(2, 10, 50, parent=1, flags=EventFlag.ASYNC),
        row(1, 20, 40, parent=1, thread=WORKER_THREAD),
        row(1, 0, 100),
    ]
    batch = make_batch(rows)
    assert self_times(batch, nesting(batch)).tolist() == [0, 20, 100]


def test_averages_sum_up_by_name() -> None:
    averages = {each.key: each for each in key_averages(make_batch(TREE))}
    assert list(averages) == ["outer", "middle", "inner"]
    inner = averages["inner"]
    assert (inner.count, inner.cpu_time_total, inner.self_cpu_time_total, inner.cpu_time) == (2, 0.02, 0.02, 0.01)
    assert sum(each.self_cpu_time_total for each in averages.values()) == pytest.approx(0.1)


def test_averages_by_shape_keep_shapes_apart() -> None:
    rows = [row(1, 0, 1, name="mm", shapes="[[2]]"), row(2, 2, 3, name="mm", shapes="[[3]]")]
    assert [one.input_shapes for one in key_averages(make_batch(rows), group_by_input_shape=True)] == ["[[2]]", "[[3]]"]
    assert [(one.count, one.input_shapes) for one in key_averages(make_batch(rows))] == [(2, "")]


def test_memory_counts_for_every_range_around_it() -> None:
    allocate = {"kind": EventKind.MEMORY, "name": "[memory]", "device": "cpu"}
    rows = [
        row(3, 5, 5, parent=2, nbytes=100, **allocate),
        row(4, 6, 6, parent=2, nbytes=-30, **allocate),
        row(2, 1, 8, parent=1, name="inner"),
        row(5, 9, 9, parent=1, nbytes=8, **allocate),
        row(1, 0, 10, name="outer"),
        row(6, 20, 20, nbytes=1000, **allocate),
    ]
    memory = {one.key: (one.cpu_memory_usage, one.self_cpu_memory_usage) for one in key_averages(make_batch(rows))}
    assert memory == {"inner": (70, 70), "outer": (78, 8)}


def test_the_table_sorts_and_limits() -> None:
    table = key_averages(make_batch(TREE)).table(sort_by="count", row_limit=1)
    assert "inner" in table
    assert "outer" not in table
    assert "# of Calls" in table
    assert "Memory" not in table


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingError, match="cpu_time_total"):
        key_averages(make_batch(TREE)).table(sort_by="cuda_time")


def test_a_store_started_empty_counts_anew() -> None:
    store = EventStore(max_events=3)
    store.append(make_batch(TREE))
    assert (len(store.rows()), store.dropped) == (3, 1)
    store.start_empty()
    assert store.dropped == 0
    assert store.events() == []
