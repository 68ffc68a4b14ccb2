"""Rows become pushes and pops that nest as the ranges did; a list of events makes them when they
are looked at.
"""

from __future__ import annotations

import copy
import pickle
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.legacy import ThreadEvents
from otel_recfn.legacy.config import ProfilerConfig, ProfilerState
from otel_recfn.legacy.cuda import CudaTimes
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.legacy.lists import event_lists
from otel_recfn.model.events import EventFlag, RecordScope, RowKind, make_event_id

SHAPES = ProfilerConfig(ProfilerState.CPU, report_input_shapes=True)


def lists_of(*rows: dict[str, Any], times: CudaTimes | None = None) -> list[list[LegacyEvent]]:
    return [list(each) for each in event_lists(make_batch(rows), times or CudaTimes(0), SHAPES)]


def words(events: list[LegacyEvent]) -> list[tuple[str, int]]:
    """What happened, and the ordinal of the range that it happened to."""
    return [(event.kind_str, event.event_id & 0xFF) for event in events]


def row(ordinal: int, start: int, end: int, **columns: Any) -> dict[str, Any]:
    event_id = make_event_id(columns.get("thread", MAIN_THREAD).number, ordinal)
    return {
        "event_id": event_id,
        "handle": ordinal,
        "start_ns": BASE_NS + start,
        "end_ns": BASE_NS + end,
        **columns,
    }


class TestFields:
    def test_a_push_carries_what_the_row_says(self) -> None:
        columns = {
            "name": "aten::mm",
            "scope": RecordScope.USER_SCOPE,
            "sequence_nr": 4,
            "forward_thread_id": 2,
            "handle": 77,
            "node_id": 3,
            "flags": EventFlag.ASYNC,
            "shapes": "[[2,3],[],[[1,2],[3]]]",
            "flops": 96,
            "stack": "a.py(1): inner\nb.py(2): outer",
        }
        ((push, _),) = lists_of(row(1, 10, 20, **columns))
        assert push == LegacyEvent(
            EventKind.PUSH_RANGE,
            "aten::mm",
            MAIN_THREAD.thread_id,
            77,
            shapes=((2, 3), (), ()),
            node_id=3,
            is_async=True,
            cpu_ns=BASE_NS + 10,
            sequence_nr=4,
            fwd_thread_id=2,
            scope=RecordScope.USER_SCOPE,
            flops=96,
            stack=("a.py(1): inner", "b.py(2): outer"),
            event_id=make_event_id(1, 1),
        )

    def test_a_pop_says_when_and_where_alone(self) -> None:
        ((_, pop),) = lists_of(
            row(1, 10, 20, handle=77, sequence_nr=4, scope=RecordScope.USER_SCOPE, flops=96)
        )
        expected = LegacyEvent(
            EventKind.POP_RANGE, "", 1, 77, cpu_ns=BASE_NS + 20, event_id=make_event_id(1, 1)
        )
        assert pop == expected

    def test_backward_ranges_have_no_stack(self) -> None:
        ((push, _),) = lists_of(
            row(1, 10, 20, stack="a.py(1): inner", scope=RecordScope.BACKWARD_FUNCTION)
        )
        assert push.stack == ()

    def test_a_mark_has_no_handle(self) -> None:
        ((mark,),) = lists_of(row(1, 10, 10, kind=RowKind.MARK, name="__start_profile", node_id=2))
        assert (mark.kind_str, mark.name, mark.handle, mark.node_id, mark.cpu_ns) == (
            "mark",
            "__start_profile",
            0,
            2,
            BASE_NS + 10,
        )

    def test_memory_has_no_name_and_no_handle(self) -> None:
        ((freed,),) = lists_of(
            row(1, 10, 10, kind=RowKind.MEMORY, name="[memory]", nbytes=-8, device="cuda:0")
        )
        assert (freed.kind_str, freed.name, freed.handle) == ("memory_alloc", "", 0)
        assert (freed.cpu_memory_usage, freed.cuda_memory_usage) == (0, -8)

    def test_an_open_range_is_a_push_without_a_pop(self) -> None:
        (events,) = lists_of(row(2, 12, 15), row(1, 10, 20, flags=EventFlag.PARTIAL))
        assert words(events) == [("push", 1), ("push", 2), ("pop", 2)]


class TestThreads:
    def test_a_list_per_thread(self) -> None:
        rows = row(1, 10, 20, thread=WORKER_THREAD), row(1, 5, 30)
        assert [[event.thread_id for event in events] for events in lists_of(*rows)] == [
            [1, 1],
            [2, 2],
        ]

    def test_a_pop_on_another_thread_stays_on_the_ranges_own_list(self) -> None:
        away = row(1, 10, 25, end_thread=WORKER_THREAD, flags=EventFlag.ASYNC)
        lists = lists_of(row(2, 12, 20), row(3, 22, 30), away, row(1, 11, 40, thread=WORKER_THREAD))
        assert words(lists[0]) == [
            ("push", 1),
            ("push", 2),
            ("pop", 2),
            ("push", 3),
            ("pop", 1),
            ("pop", 3),
        ]
        (pop,) = (event for event in lists[0] if event.kind_str == "pop" and event.handle == 1)
        assert pop.thread_id == WORKER_THREAD.thread_id
        assert words(lists[1]) == [("push", 1), ("pop", 1)]


@pytest.mark.usefixtures("cuda")
class TestCuda:
    def test_events_get_their_times(self) -> None:
        times = CudaTimes(100)
        for kind, key in (
            (EventKind.PUSH_RANGE, 7),
            (EventKind.POP_RANGE, 7),
            (EventKind.MARK, make_event_id(1, 2)),
        ):
            times.record(kind, key)
        rows = row(1, 10, 20, handle=7), row(2, 30, 30, kind=RowKind.MARK), row(3, 40, 50, handle=8)
        (events,) = lists_of(*rows, times=times)
        assert [event.has_cuda for event in events] == [True, True, True, False, False]
        assert events[0].cuda_elapsed_us(events[1]) == 1000.0

    def test_no_more_than_may_be_kept(self) -> None:
        times = CudaTimes(1)
        times.record(EventKind.PUSH_RANGE, 1)
        times.record(EventKind.POP_RANGE, 1)
        assert times.take(EventKind.PUSH_RANGE, 1) is not None
        assert times.take(EventKind.POP_RANGE, 1) is None


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[str, int]], list[dict[str, Any]]]:
    """What a thread did, on a clock that often stands still, and the rows that a drain makes of
    it.
    """
    happened: list[tuple[str, int]] = []
    rows: list[dict[str, Any]] = []
    open_ranges: list[tuple[int, int]] = []
    now = ordinal = 0
    for action in draw(
        st.lists(st.sampled_from(["push", "pop", "memory_alloc", "mark", "tick"]), max_size=40)
    ):
        if action == "tick":
            now += 1
        elif action == "push":
            ordinal += 1
            open_ranges.append((ordinal, now))
            happened.append(("push", ordinal))
        elif action == "pop" and open_ranges:
            began, start = open_ranges.pop()
            happened.append(("pop", began))
            rows.append(row(began, start, now))
        elif action in ("memory_alloc", "mark"):
            ordinal += 1
            happened.append((action, ordinal))
            rows.append(
                row(
                    ordinal,
                    now,
                    now,
                    kind=RowKind.MARK if action == "mark" else RowKind.MEMORY,
                    device="cpu",
                )
            )
    rows += [
        row(began, start, now, flags=EventFlag.PARTIAL) for began, start in reversed(open_ranges)
    ]
    return happened, rows


@given(program=programs())
def test_events_come_in_the_order_in_which_they_happened(
    program: tuple[list[tuple[str, int]], list[dict[str, Any]]],
) -> None:
    happened, rows = program
    assert [words(events) for events in lists_of(*rows)] == ([happened] if happened else [])


@given(program=programs(), away=st.sets(st.integers(1, 20)))
def test_every_pop_follows_its_push_also_when_others_ended_it(
    program: tuple[list[tuple[str, int]], list[dict[str, Any]]], away: set[int]
) -> None:
    rows = [
        {**each, "end_thread": WORKER_THREAD} if each["handle"] in away else each
        for each in program[1]
    ]
    for events in lists_of(*rows):
        times = [event.cpu_ns for event in events]
        assert times == sorted(times)
        ranges = sorted((event for event in events if event.handle), key=lambda event: event.handle)
        for _, range_events in groupby(ranges, key=lambda event: event.handle):
            assert [event.kind_str for event in range_events] in (["push"], ["push", "pop"])


def event(number: int) -> LegacyEvent:
    return LegacyEvent(EventKind.MARK, str(number), 1, event_id=number)


class Maker:
    """Makes events, and knows how often it was asked for them."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def __call__(self) -> list[LegacyEvent]:
        self.asked += 1
        return [event(number) for number in range(self.count)]


def lazy(count: int) -> tuple[ThreadEvents, Maker]:
    maker = Maker(count)
    return ThreadEvents(maker), maker


def test_events_are_made_when_one_is_looked_at() -> None:
    events, maker = lazy(10)
    assert maker.asked == 0
    assert len(events) == 10
    assert events[5] is events[5]
    assert events[-1].event_id == 9
    assert [each.event_id for each in events] == list(range(10))
    assert maker.asked == 1


def test_events_that_could_not_be_made_are_made_at_the_next_look() -> None:
    left = [KeyboardInterrupt()]

    def make() -> list[LegacyEvent]:
        if left:
            raise left.pop()
        return [event(7)]

    events = ThreadEvents(make)
    with pytest.raises(KeyboardInterrupt):
        len(events)
    assert [each.event_id for each in events] == [7]


CHANGES = {
    "append": lambda each: each.append(event(90)),
    "insert": lambda each: each.insert(2, event(91)),
    "set": lambda each: each.__setitem__(-1, event(92)),
    "set slice": lambda each: each.__setitem__(slice(1, 3), [event(93)]),
    "delete": lambda each: each.__delitem__(0),
    "pop": lambda each: each.pop(),
    "reverse": lambda each: each.reverse(),
    "sort": lambda each: each.sort(key=lambda one: -one.event_id),
    "extend": lambda each: each.extend([event(94)]),
    "clear": lambda each: each.clear(),
    "change": lambda each: setattr(each[0], "name", "changed"),
}


READS = {
    "slice": lambda each: each[1:7:2],
    "backwards": lambda each: each[::-1],
    "index": lambda each: each.index(event(1)),
    "count": lambda each: each.count(event(1)),
    "in": lambda each: event(2) in each,
    "add": lambda each: each + [event(3)],  # noqa: RUF005 - the operator
    "added": lambda each: [event(3)] + each,  # noqa: RUF005 - the operator
    "unpacked": lambda each: [*each],
    "reversed": lambda each: list(reversed(each)),
    "sorted": lambda each: sorted(each, key=lambda one: one.name),
    "copy": lambda each: list(copy.deepcopy(each)),
    "pickle": lambda each: list(pickle.loads(pickle.dumps(each))),
    "repr": repr,
    "bool": bool,
}


def outcome(act: Any, events: Any) -> Any:
    try:
        return act(events)
    except (IndexError, ValueError) as error:
        return type(error)


@given(count=st.integers(0, 13), acts=st.lists(st.sampled_from([*CHANGES, *READS]), max_size=6))
def test_it_is_as_a_list(count: int, acts: list[str]) -> None:
    events = lazy(count)[0]
    plain = [event(number) for number in range(count)]
    for name in acts:
        act = CHANGES.get(name) or READS[name]
        assert outcome(act, events) == outcome(act, plain)
    assert events == plain
    assert plain == events
    assert not events != plain  # noqa: SIM202 - the other operator
