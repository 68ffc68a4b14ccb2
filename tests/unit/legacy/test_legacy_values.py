"""Legacy events: their fields, their way to other processes as values, and the time between two."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_cuda import FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.cuda import cuda_stubs
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.model.events import RecordScope

pytestmark = pytest.mark.one_python

INT64 = st.integers(-(2**63), 2**63 - 1)
NOT_NEGATIVE = st.integers(0, 2**63 - 1)

sent_events = st.builds(
    LegacyEvent,
    kind=st.sampled_from(EventKind),
    name=st.text(st.characters()),
    thread_id=NOT_NEGATIVE,
    handle=st.integers(0, 2**53),
    shapes=st.lists(st.lists(INT64, max_size=4).map(tuple), max_size=4).map(tuple),
    node_id=INT64,
    is_async=st.booleans(),
    is_remote=st.booleans(),
    cpu_ns=st.integers(1, 2**63 - 1),
    cpu_memory_usage=INT64,
    cuda_memory_usage=INT64,
    device=st.integers(0, 127),
    cuda_us=NOT_NEGATIVE,
    sequence_nr=INT64,
    fwd_thread_id=NOT_NEGATIVE,
    scope=st.sampled_from(RecordScope),
    flops=NOT_NEGATIVE,
    stack=st.lists(st.text()).map(tuple),
    event_id=NOT_NEGATIVE,
    correlation_id=NOT_NEGATIVE,
    _extra_args=st.none() | st.dictionaries(st.text(), INT64 | st.lists(INT64), min_size=1),
) | st.builds(
    LegacyEvent,
    st.sampled_from(EventKind),
    st.text(),
    NOT_NEGATIVE,
    is_remote=st.booleans(),
    cpu_ns=st.just(1),
)

VALUES: list[Any] = [1, "aten::add", 3, 7.0, -1, 0, 1_000, True, 0, 0, 12, [[2, 3], []]]
"""PyTorch's: kind, name, thread, handle, node, CPU bytes, CPU ns, CUDA recorded, CUDA bytes,
device, CUDA us, shapes
"""


def test_kinds_have_the_values_and_words_of_the_reference() -> None:
    words = [(int(kind), LegacyEvent(kind, "", 1).kind_str) for kind in EventKind]
    assert words == [(0, "mark"), (1, "push"), (2, "pop"), (3, "memory_alloc")]


def test_defaults_of_the_reference() -> None:
    event = LegacyEvent(EventKind.PUSH_RANGE, "op", 1)
    assert (event.handle, event.node_id, event.sequence_nr, event.fwd_thread_id, event.scope) == (
        0,
        -1,
        -1,
        0,
        0,
    )
    assert (event.device, event.cuda_us, event.has_cuda, event.is_async, event.is_remote) == (
        -1,
        -1,
        False,
        False,
        False,
    )


class TestValueList:
    def test_the_first_twelve_are_the_references(self) -> None:
        event = LegacyEvent.from_value_list(VALUES)
        assert event.is_remote
        assert event.to_value_list()[: len(VALUES)] == VALUES
        assert isinstance(event.to_value_list()[3], float)

    @given(event=sent_events)
    def test_there_and_back(self, event: LegacyEvent) -> None:
        assert LegacyEvent.from_value_list(event.to_value_list()) == event

    def test_what_is_local_comes_back_as_it_was_through_json_too(self) -> None:
        local = LegacyEvent(
            EventKind.PUSH_RANGE,
            "aten::mm",
            1,
            cpu_ns=5,
            sequence_nr=3,
            scope=7,
            stack=("a(1): b",),
            event_id=9,
            flops=48,
            _extra_args={"mat1_size": [2, 3], "mat2_size": [3, 4]},
        )
        assert LegacyEvent.from_value_list(json.loads(json.dumps(local.to_value_list()))) == local

    @pytest.mark.parametrize("later", [["later"], [1, 2, 3], [None] * 20])
    def test_what_others_send_after_the_twelve_is_left_out(self, later: list[Any]) -> None:
        assert LegacyEvent.from_value_list([*VALUES, *later]) == LegacyEvent.from_value_list(VALUES)

    def test_arguments_without_names_are_refused(self) -> None:
        values = LegacyEvent.from_value_list(VALUES).to_value_list()
        with pytest.raises(ProfilerError, match="Expected lists of a name and a value"):
            LegacyEvent.from_value_list([*values[:-1], [7]])


class TestElapsed:
    def test_on_the_cpu_in_microseconds_either_way(self) -> None:
        push, pop = (LegacyEvent(EventKind.MARK, "", 1, cpu_ns=ns) for ns in (1_000, 3_500))
        assert (push.cpu_elapsed_us(pop), pop.cpu_elapsed_us(push), pop.cpu_us) == (2.5, -2.5, 3.5)

    def test_on_the_gpu_by_its_events(self, cuda: FakeCuda) -> None:
        push = recorded(EventKind.PUSH_RANGE)
        pop = recorded(EventKind.POP_RANGE)
        assert push.cuda_elapsed_us(pop) == 1000.0
        assert all(event.synchronized for event in cuda.events)

    @pytest.mark.parametrize("is_remote", [True, False])
    def test_on_the_gpu_of_events_that_came_as_values(self, is_remote: bool) -> None:
        push = replace(LegacyEvent.from_value_list(VALUES), is_remote=is_remote)
        pop = LegacyEvent.from_value_list(replace(push, cuda_us=20).to_value_list())
        assert push.cuda_elapsed_us(pop) == 8.0

    def test_without_cuda(self, cuda: FakeCuda) -> None:
        with pytest.raises(ProfilerError, match="Events were not recorded for CUDA"):
            recorded(EventKind.PUSH_RANGE).cuda_elapsed_us(LegacyEvent(EventKind.POP_RANGE, "", 1))

    def test_on_different_devices(self, cuda: FakeCuda) -> None:
        push = recorded(EventKind.PUSH_RANGE)
        cuda.device = 1
        with pytest.raises(ProfilerError, match="Events are not on the same device: 1 vs 0"):
            push.cuda_elapsed_us(recorded(EventKind.POP_RANGE))

    def test_of_an_event_that_came_as_values_and_another_one(self, cuda: FakeCuda) -> None:
        with pytest.raises(ProfilerError, match="only one of the events came as values"):
            LegacyEvent.from_value_list(VALUES).cuda_elapsed_us(recorded(EventKind.POP_RANGE))


def recorded(kind: EventKind) -> LegacyEvent:
    device, event, now = cuda_stubs().record()
    return LegacyEvent(kind, "op", 1, device=device, cuda_event=event, cpu_ns=now)
