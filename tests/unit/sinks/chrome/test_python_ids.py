"""Ids of traced calls: one for each, in the order of starts over all batches and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import make_batch
from otel_recfn.model.events import EventKind, EventSource
from otel_recfn.sinks.chrome.encoder import PythonIds

pytestmark = pytest.mark.one_python

SHOWN = {"source": EventSource.PYTHON_CALL, "name": "f"}
MODULE = {"source": EventSource.MODULE, "name": "nn.Module: Linear_0"}


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5), max_size=4))
def test_calls_are_numbered_by_start(given_batches: list[list[tuple[int, bool]]]) -> None:
    event_id, rows, batches = 0, [], []
    for given_rows in given_batches:
        batch: list[dict[str, Any]] = []
        for start_ns, is_call in given_rows:
            event_id += 3
            batch.append({"event_id": event_id, "start_ns": start_ns, **(SHOWN if is_call else {"name": "op"})})
            if is_call:
                rows.append((start_ns, event_id))
        batches.append(make_batch(batch))
    ids = PythonIds(batches)
    in_order = np.array([event_id for _, event_id in sorted(rows)], dtype=np.uint64)
    assert ids.of(in_order).tolist() == list(range(1, len(rows) + 1))
    assert not ids.of(np.array([0, 1, event_id + 1], dtype=np.uint64)).any()


def test_modules_count_where_a_call_made_them() -> None:
    batch = make_batch(
        [
            {"event_id": 1, "start_ns": 1, **SHOWN},
            {"event_id": 2, "start_ns": 2, "caller": 1, **MODULE},
            {"event_id": 3, "start_ns": 3, **MODULE},
            {"event_id": 4, "start_ns": 4, "caller": 1, "name": "op"},
            {"event_id": 5, "start_ns": 5, **SHOWN, "kind": EventKind.MARK},
            {"event_id": 6, "start_ns": 6, **SHOWN},
        ]
    )
    assert PythonIds([batch]).of(batch.event_id).tolist() == [1, 2, 0, 0, 0, 3]
