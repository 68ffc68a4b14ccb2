"""Forward-backward links, from hand-made batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn._native import ForwardRanges
from otel_recfn.batches.forward_links import find_links
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_MASK, EventKind, RecordScope, make_event_id

pytestmark = pytest.mark.one_python

BACKWARD = RecordScope.BACKWARD_FUNCTION


def forward(sequence_nr: int, **columns: Any) -> dict[str, Any]:
    return {"name": "aten::mul", "sequence_nr": sequence_nr, **columns}


def backward(sequence_nr: int, forward_thread_id: int = 1, **columns: Any) -> dict[str, Any]:
    link = {"sequence_nr": sequence_nr, "forward_thread_id": forward_thread_id, "scope": BACKWARD}
    return {"name": "MulBackward0", "thread": WORKER_THREAD, **link, **columns}


class ForwardRange(NamedTuple):
    """A row of ``Links``."""

    event_id: int
    start_ns: int
    thread: int
    """The recorder's number."""


def linked(links: ForwardRanges, batch: Batch) -> list[tuple[int, ForwardRange]]:
    """The backward rows, each with its forward range."""
    numbers = np.array([track.number for track in batch.tracks], np.uint64)
    columns = (column.tolist() for column in find_links(links, batch, numbers))
    return [(row, ForwardRange(*values)) for row, *values in zip(*columns, strict=True)]


def linked_ids(links: ForwardRanges, *rows: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row, found.event_id) for row, found in linked(links, make_batch(rows))]


def test_a_backward_range_finds_its_forward_range_with_all_that_is_known_of_it() -> None:
    batch = make_batch([forward(3, event_id=11), backward(3)])
    [(row, found)] = linked(ForwardRanges(), batch)
    assert row == 1
    assert found == (11, BASE_NS, MAIN_THREAD.number)


def test_the_forward_may_be_in_an_earlier_batch_or_later_in_the_same() -> None:
    links = ForwardRanges()
    assert linked_ids(links, forward(1, event_id=11)) == []
    assert linked_ids(links, backward(1), backward(2), forward(2, event_id=12)) == [(0, 11), (1, 12)]


def test_of_ranges_with_one_number_the_one_that_started_last_is_the_forward() -> None:
    inner, outer = forward(5, event_id=12, start_ns=BASE_NS + 10), forward(5, event_id=11, start_ns=BASE_NS)
    assert linked_ids(ForwardRanges(), inner, outer, backward(5)) == [(2, 12)]


def test_what_is_no_forward_or_no_backward_is_left_alone() -> None:
    rows = [
        forward(-1),
        forward(5, kind=EventKind.MARK),
        forward(6, forward_thread_id=1),  # an operator that runs within a backward node
        backward(-1),
        backward(5),
        backward(6),
        backward(7, forward_thread_id=0),
        backward(8, forward_thread_id=99),
        {"scope": RecordScope.FUNCTION, "sequence_nr": 5, "forward_thread_id": 1},
    ]
    assert linked_ids(ForwardRanges(), *rows) == []


def test_memory_is_bounded_and_what_started_first_is_forgotten_first() -> None:
    links, many = ForwardRanges(), make_batch([forward(0)] * 4096)
    for step in range(70):
        numbers = np.arange(4096) + 4096 * step
        linked(links, replace(many, sequence_nr=numbers, start_ns=BASE_NS + numbers))
    [(_, found)] = linked(links, make_batch([backward(0), backward(4096 * 70 - 1)]))
    assert found.start_ns == BASE_NS + 4096 * 70 - 1


@given(st.data())
def test_links_are_those_of_a_plain_search(data: st.DataObject) -> None:
    """Random numbers, threads and starts in random batches, against the definition."""
    threads = [MAIN_THREAD, WORKER_THREAD]
    thread, number = st.sampled_from(threads), st.integers(0, 6)
    start = st.integers(0, 1 << 40)
    forwards = st.builds(lambda n, t, s: forward(n, thread=t, start_ns=s), number, thread, start)
    backwards = st.builds(lambda n, t: backward(n, t.thread_id), number, thread)
    batches = data.draw(st.lists(st.lists(st.one_of(forwards, backwards), max_size=12), max_size=8))
    links, seen, ordinal = ForwardRanges(), [], 0
    for rows in batches:
        for row in rows:
            ordinal += 1
            row["event_id"] = make_event_id(row["thread"].number, ordinal)
        seen += [row for row in rows if "scope" not in row]
        expected = {row: max(_starts(seen, wanted)) for row, wanted in enumerate(rows) if _starts(seen, wanted)}
        assert {row: found.start_ns for row, found in linked(links, make_batch(rows))} == expected


NUMBERS = st.sampled_from([-1, 0, 1, 7, 8, 9, 16, ORDINAL_MASK, ORDINAL_MASK + 1, (1 << 62) + 1])
any_row = st.fixed_dictionaries(
    {
        "event_id": st.integers(1, 1 << 63),
        "sequence_nr": NUMBERS,
        "start_ns": st.integers(BASE_NS, BASE_NS + 3),
        "forward_thread_id": st.sampled_from([0, 0, 1, 2, 99]),
        "kind": st.sampled_from([EventKind.RANGE, EventKind.RANGE, EventKind.MARK]),
        "scope": st.sampled_from([RecordScope.FUNCTION, BACKWARD]),
        "thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
    }
)


@given(batches=st.lists(st.lists(any_row, max_size=12).map(make_batch), max_size=5))
def test_any_rows_are_linked_as_the_definition_says(batches: list[Batch]) -> None:
    links, last_started = ForwardRanges(), {}
    for batch in batches:
        rows = [(at, row) for at, row in enumerate(batch.events()) if row.kind == EventKind.RANGE]
        numbered = [(at, row) for at, row in rows if 0 <= row.sequence_nr <= ORDINAL_MASK]
        for _, row in numbered:
            if row.scope != BACKWARD and not row.forward_thread_id:
                key = row.thread.thread_id, row.sequence_nr
                last_started[key] = max(row, last_started.get(key, row), key=lambda one: one.start_ns)
        expected = []
        for at, row in numbered:
            found = last_started.get((row.forward_thread_id, row.sequence_nr))
            if row.scope == BACKWARD and row.forward_thread_id and found is not None:
                expected.append((at, ForwardRange(found.event_id, found.start_ns, found.thread.number)))
        assert linked(links, batch) == expected


def _starts(seen: list[dict[str, Any]], wanted: dict[str, Any]) -> list[int]:
    number, thread_id = wanted["sequence_nr"], wanted.get("forward_thread_id", 0)
    return [row["start_ns"] for row in seen if row["sequence_nr"] == number and row["thread"].thread_id == thread_id]
