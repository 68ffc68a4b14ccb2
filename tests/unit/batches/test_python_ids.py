"""Ids of traced calls: one for each, in the order of begins over all threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.python_ids import PythonIds
from otel_recfn.model.batch import Batch, OpenCalls
from otel_recfn.model.events import EventSource, RowKind

pytestmark = pytest.mark.one_python

THREADS = (MAIN_THREAD, WORKER_THREAD)
MODULE = {"source": EventSource.MODULE, "name": "nn.Module: Linear_0"}
CALL = {"source": EventSource.PYTHON_CALL, "name": "f"}


class Call(NamedTuple):
    """A call of a thread: its times, and the one around it, 0 for none."""

    event_id: int
    thread: int
    start_ns: int
    end_ns: int
    caller: int


@st.composite
def programs(draw: st.DrawFn) -> list[Call]:
    """Calls that nest in their threads, each step of which begins or ends one; two threads may
    do so at the same time.
    """
    calls = list[Call]()
    counts = [0, 0]
    stacks = ([], [])
    steps = draw(
        st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 1)), max_size=30)
    )
    now = 10
    own_times = [0, 0]
    for thread, begins, passes in [
        *steps,
        *[(thread, False, 1) for thread in (0, 1) for _ in range(30)],
    ]:
        now += passes
        stack: list[tuple[int, int, int]] = stacks[thread]
        now = max(now, own_times[thread] + 1)
        own_times[thread] = now
        if begins:
            counts[thread] += 1
            event_id = ((thread + 1) << 40) + counts[thread]
            stack.append((event_id, now, stack[-1][0] if stack else 0))
        elif stack:
            event_id, start_ns, caller = stack.pop()
            calls.append(Call(event_id, thread, start_ns, now, caller))
    return calls


def batch_of(calls: list[Call], since: int, until: int) -> Batch:
    """What a drain at that moment gives, after an earlier one."""
    rows = [
        {
            **CALL,
            "event_id": call.event_id,
            "thread": THREADS[call.thread],
            "start_ns": call.start_ns,
            "end_ns": call.end_ns,
            "caller": call.caller,
        }
        for call in calls
        if since < call.end_ns <= until
    ]
    are_open = [call for call in calls if call.start_ns <= until < call.end_ns]
    columns = [(call.event_id, call.start_ns, call.caller) for call in are_open]
    ids, starts, callers = zip(*columns, strict=True) if columns else ((), (), ())
    open_calls = OpenCalls(
        np.array(ids, np.uint64), np.array(starts, np.int64), np.array(callers, np.uint64)
    )
    return replace(make_batch(rows), open_calls=open_calls)


def batches_of(calls: list[Call], drains: set[int]) -> list[Batch]:
    times = [0, *sorted(drains), max([call.end_ns for call in calls], default=0) + 100]
    return [batch_of(calls, since, until) for since, until in pairwise(times)]


def ids_in(batch: Batch, ids: PythonIds, follows: bool) -> dict[int, tuple[int, int]]:
    """The ids of each call and of its caller, by event id."""
    found = ids.follow(batch) if follows else ids.call_ids(batch)
    if found is None:
        return {}
    return dict(
        zip(
            batch.event_id.tolist(),
            zip(found.own.tolist(), found.caller.tolist(), strict=True),
            strict=True,
        )
    )


@given(programs(), st.sets(st.integers(10, 60), max_size=5))
def test_calls_that_come_in_turn_have_the_ids_of_those_that_are_known_at_once(
    calls: list[Call], drains: set[int]
) -> None:
    batches = batches_of(calls, drains)
    at_once = PythonIds()
    in_turn = PythonIds()
    at_once.add(batches)
    known = {
        key: ids for batch in batches for key, ids in ids_in(batch, at_once, follows=False).items()
    }
    assert {
        key: ids for batch in batches for key, ids in ids_in(batch, in_turn, follows=True).items()
    } == known
    in_order = sorted(calls, key=lambda call: (call.start_ns, call.event_id))
    assert [known[call.event_id][0] for call in in_order] == list(range(1, len(calls) + 1))
    assert all(
        known[call.event_id][1] == (known[call.caller][0] if call.caller else 0) for call in calls
    )


@given(programs(), st.sets(st.integers(10, 60), max_size=5), st.integers(0, 5))
def test_ids_stay_in_order_where_a_batch_is_lost(
    calls: list[Call], drains: set[int], lost: int
) -> None:
    batches = batches_of(calls, drains)
    ids = PythonIds()
    del batches[min(lost, len(batches) - 1)]
    found = {
        key: own for batch in batches for key, (own, _) in ids_in(batch, ids, follows=True).items()
    }
    starts = {call.event_id: (call.start_ns, call.event_id) for call in calls}
    in_order = sorted(found, key=lambda event_id: starts[event_id])
    assert [found[each] for each in in_order] == sorted({*found.values()})


def test_modules_count_where_a_call_made_them() -> None:
    batch = make_batch(
        [
            {"event_id": 1, "start_ns": 1, **CALL},
            {"event_id": 2, "start_ns": 2, "caller": 1, **MODULE},
            {"event_id": 3, "start_ns": 3, **MODULE},
            {"event_id": 4, "start_ns": 4, "caller": 1, "name": "op"},
            {"event_id": 5, "start_ns": 5, **CALL, "kind": RowKind.MARK},
            {"event_id": 6, "start_ns": 6, **CALL},
        ]
    )
    found = PythonIds().follow(batch)
    assert found is not None
    assert found.own.tolist() == [1, 2, 0, 0, 0, 3]


def test_without_calls_there_are_no_ids() -> None:
    assert PythonIds().follow(make_batch([{"name": "op"}])) is None
