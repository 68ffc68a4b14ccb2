"""The range around a backward node has the node's numbers, which PyTorch gives the node alone."""

from __future__ import annotations

import pytest

from helpers import source_calls
from helpers.recording_helpers import SOURCE, USER, Capture
from otel_recfn.model.events import NODES_PREFIX, EventFlag, RecordScope

NUMBERS = {"sequence_nr": 7, "forward_thread_id": 3}


def begin_node(capture: Capture, enclosing: str, name: str = "MulBackward0") -> tuple[int, int]:
    """A range with a backward node in it, both of which are open."""
    return capture.begin(enclosing), source_calls.begin(
        name, RecordScope.BACKWARD_FUNCTION, SOURCE, **NUMBERS
    )


def numbers(capture: Capture, event_id: int) -> tuple[int, int]:
    (row,) = [row for row in capture.rows() if row.event_id == event_id]
    return row.sequence_nr, row.forward_thread_id


@pytest.mark.parametrize("is_drained_between", [False, True])
def test_they_are_those_of_the_node_inside(capture: Capture, is_drained_between: bool) -> None:
    enclosing, node = begin_node(capture, NODES_PREFIX + "MulBackward0")
    if is_drained_between:
        capture.drain()
    capture.end(node)
    if is_drained_between:
        capture.drain()
    capture.end(enclosing)
    capture.finish()
    assert numbers(capture, enclosing) == numbers(capture, node) == (7, 3)


def test_a_range_that_is_open_has_them(capture: Capture) -> None:
    enclosing, _ = begin_node(capture, NODES_PREFIX + "MulBackward0")
    capture.finish()
    (row,) = [row for row in capture.rows() if row.event_id == enclosing]
    assert row.flags & EventFlag.PARTIAL
    assert (row.sequence_nr, row.forward_thread_id) == (7, 3)


def test_other_ranges_around_a_node_have_none(capture: Capture) -> None:
    enclosing, node = begin_node(capture, "mine")
    capture.end(node)
    capture.end(enclosing)
    capture.finish()
    assert numbers(capture, enclosing) == (-1, 0)


def test_a_range_has_those_of_a_node_directly_in_it_alone(capture: Capture) -> None:
    enclosing = capture.begin(NODES_PREFIX + "MulBackward0")
    hook = capture.begin("hook")
    inner = source_calls.begin("AddBackward0", RecordScope.BACKWARD_FUNCTION, SOURCE, **NUMBERS)
    for event_id in (inner, hook, enclosing):
        capture.end(event_id)
    capture.finish()
    assert numbers(capture, enclosing) == numbers(capture, hook) == (-1, 0)


def test_a_number_of_its_own_stays(capture: Capture) -> None:
    enclosing = source_calls.begin(NODES_PREFIX + "MulBackward0", USER, SOURCE, sequence_nr=1)
    node = source_calls.begin("MulBackward0", RecordScope.BACKWARD_FUNCTION, SOURCE, **NUMBERS)
    capture.end(node)
    capture.end(enclosing)
    capture.finish()
    assert numbers(capture, enclosing) == (1, 0)
