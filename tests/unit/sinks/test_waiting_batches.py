"""Batches that wait for memory stay in order and are refused late."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.sinks import waiting_batches
from otel_recfn.sinks.waiting_batches import ALWAYS_TAKEN, MAX_ROWS, WaitingBatches

pytestmark = pytest.mark.one_python

SMALL = make_batch([{}])
FEW = 8
MANY = [SMALL.take(slice(None)) for _ in range(19)]
"""More than twice as many as few."""


def rows(count: int) -> Batch:
    return make_batch([{}] * count)


@pytest.fixture
def few_always_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ring with few places the end is soon reached, and each batch that is added counts all that wait."""
    monkeypatch.setattr(waiting_batches, "ALWAYS_TAKEN", FEW)


@pytest.mark.usefixtures("few_always_taken")
@given(st.lists(st.integers(0, 5 * FEW), max_size=6))
def test_they_come_out_in_the_order_in_which_they_came(left: list[int]) -> None:
    waiting, expected = WaitingBatches(), deque[Batch]()
    for most in left:
        for batch in MANY:
            assert waiting.add(batch)
            expected.append(batch)
        while len(expected) > most:
            assert waiting.first() is expected.popleft()
            waiting.remove_first()
        assert list(map(id, waiting)) == list(map(id, expected))
        assert len(waiting) == len(expected)
    waiting.clear()
    assert waiting.first() is None
    assert not waiting


def test_thousands_of_small_ones_wait_and_not_more() -> None:
    waiting = WaitingBatches()
    taken = 0
    while waiting.add(SMALL):
        taken += 1
        assert taken < MAX_ROWS
    assert taken == len(waiting) > 3000


def test_of_large_ones_few_wait() -> None:
    waiting, large = WaitingBatches(), rows(MAX_ROWS // ALWAYS_TAKEN)
    assert [waiting.add(large) for _ in range(ALWAYS_TAKEN + 1)] == [True] * ALWAYS_TAKEN + [False]
    waiting.remove_first()
    assert waiting.add(large)


def test_without_memory_for_more_places_those_that_are_there_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(waiting_batches, "sum", no_memory, raising=False)
    waiting = WaitingBatches()
    assert [waiting.add(SMALL) for _ in range(2 * ALWAYS_TAKEN + 1)] == [True] * 2 * ALWAYS_TAKEN + [False]
    monkeypatch.undo()
    assert waiting.add(SMALL)


@pytest.mark.parametrize("batch", [SMALL, rows(MAX_ROWS // ALWAYS_TAKEN)])
def test_half_of_the_room_is_for_who_does_not_ask(batch: Batch) -> None:
    waiting = WaitingBatches()
    asked = beyond = 0
    while waiting.has_room():
        assert waiting.add(batch)
        asked += 1
    while waiting.add(batch):
        beyond += 1
    assert abs(asked - beyond) <= 1
    while len(waiting) >= asked:
        waiting.remove_first()
    assert waiting.has_room()


def test_without_memory_for_more_places_there_is_room_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(waiting_batches, "sum", no_memory, raising=False)
    waiting = WaitingBatches()
    while waiting.has_room():
        assert waiting.add(SMALL)
    assert 0 < len(waiting) <= ALWAYS_TAKEN
    monkeypatch.undo()
    assert waiting.has_room()
