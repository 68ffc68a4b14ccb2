"""Forward-backward links, from hand-made batches."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn._native import ForwardRanges
from otel_recfn.batches.forward_links import find_links
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_MASK, RecordScope, RowKind

pytestmark = pytest.mark.one_python

BACKWARD = RecordScope.BACKWARD_FUNCTION


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


def test_memory_is_bounded_and_what_started_first_is_forgotten_first() -> None:
    links = ForwardRanges()
    many = make_batch([{"sequence_nr": 0}] * 4096)
    for step in range(70):
        numbers = np.arange(4096) + 4096 * step
        linked(links, replace(many, sequence_nr=numbers, start_ns=BASE_NS + numbers))
    backward = [
        {"sequence_nr": number, "forward_thread_id": 1, "scope": BACKWARD}
        for number in (0, 4096 * 70 - 1)
    ]
    [(_, found)] = linked(links, make_batch(backward))
    assert found.start_ns == BASE_NS + 4096 * 70 - 1


NUMBERS = st.sampled_from([-1, 0, 1, 7, 8, 9, 16, ORDINAL_MASK, ORDINAL_MASK + 1, (1 << 62) + 1])
any_row = st.fixed_dictionaries(
    {
        "event_id": st.integers(1, 1 << 63),
        "sequence_nr": NUMBERS,
        "start_ns": st.integers(BASE_NS, BASE_NS + 3),
        "forward_thread_id": st.sampled_from([0, 0, 1, 2, 99]),
        "kind": st.sampled_from([RowKind.RANGE, RowKind.RANGE, RowKind.MARK]),
        "scope": st.sampled_from([RecordScope.FUNCTION, BACKWARD]),
        "thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
    }
)


@given(batches=st.lists(st.lists(any_row, max_size=12).map(make_batch), max_size=5))
def test_any_rows_are_linked_as_the_definition_says(batches: list[Batch]) -> None:
    links = ForwardRanges()
    last_started = {}
    for batch in batches:
        rows = [(at, row) for at, row in enumerate(batch.events()) if row.kind == RowKind.RANGE]
        numbered = [(at, row) for at, row in rows if 0 <= row.sequence_nr <= ORDINAL_MASK]
        for _, row in numbered:
            if row.scope != BACKWARD and not row.forward_thread_id:
                key = row.thread.thread_id, row.sequence_nr
                last_started[key] = max(
                    row, last_started.get(key, row), key=lambda one: one.start_ns
                )
        expected = []
        for at, row in numbered:
            found = last_started.get((row.forward_thread_id, row.sequence_nr))
            if row.scope == BACKWARD and row.forward_thread_id and found is not None:
                expected.append(
                    (at, ForwardRange(found.event_id, found.start_ns, found.thread.number))
                )
        assert linked(links, batch) == expected
