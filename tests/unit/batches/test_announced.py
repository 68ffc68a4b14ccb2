"""What a batch announces, also where only some of it is asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batches import context, make_batch
from otel_recfn.batches.selection import announced
from otel_recfn.model.columns import NO_CONTEXT


@given(contexts=st.lists(st.integers(0, 3), max_size=20), wanted=st.frozensets(st.integers(0, 4)))
def test_what_is_announced_in_some_contexts(contexts: list[int], wanted: frozenset[int]) -> None:
    rows = [
        {
            "event_id": number + 1,
            "start_ns": number,
            "name": f"range {number % 3}",
            "context": context(1, of) if of else NO_CONTEXT,
        }
        for number, of in enumerate(contexts)
    ]
    batch = make_batch(rows) if rows else make_batch([{}]).take(slice(0))
    opened = announced(batch, np.arange(len(batch)))
    expected = [one for one in opened if one.context in wanted]
    assert [*opened.in_contexts(wanted)] == expected
