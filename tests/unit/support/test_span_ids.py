"""Span ids: different for different events, never 0, the same one by one and by the column,
unrelated after a fork.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support import span_ids

EVENT_IDS = st.integers(min_value=1, max_value=(1 << 63) - 1)
MASK = (1 << 64) - 1


@given(st.lists(EVENT_IDS, max_size=50, unique=True))
def test_different_events_have_different_ids(event_ids: list[int]) -> None:
    column = span_ids.span_ids(np.array(event_ids, dtype=np.uint64))
    assert len({*column.tolist()}) == len(event_ids)


@given(st.lists(EVENT_IDS, max_size=50))
def test_column_agrees_with_single(event_ids: list[int]) -> None:
    column = span_ids.span_ids(np.array(event_ids, dtype=np.uint64))
    assert column.tolist() == [span_ids.span_id(event_id) for event_id in event_ids]


@given(EVENT_IDS)
def test_is_a_valid_span_id(event_id: int) -> None:
    assert 0 < span_ids.span_id(event_id) <= MASK


def test_only_the_key_would_be_zero() -> None:
    assert span_ids.span_id(span_ids.current_key()) == 0
    assert span_ids.current_key() > 1 << 63


def test_rekeying_changes_every_id() -> None:
    before = span_ids.span_id(1)
    span_ids.rekey()
    assert span_ids.span_id(1) != before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_has_another_key() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, span_ids.span_id(7).to_bytes(8, "big"))
        os._exit(0)
    os.close(writer)
    in_child = int.from_bytes(os.read(reader, 8), "big")
    os.close(reader)
    os.waitpid(child, 0)
    assert in_child
    assert in_child != span_ids.span_id(7)
