"""The legacy profiler's trace: valid JSON whatever the names, times since the start mark, errors that name the event."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.legacy.config import EventKind
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.record_profile import write_profiler_events_to_stream
from otel_recfn.model.errors import ProfilerError

START = LegacyEvent(EventKind.MARK, "__start_profile", 1, cpu_ns=1_000_000)


def push(name: str, handle: int, ns: int, thread: int = 1, node: int = -1) -> LegacyEvent:
    return LegacyEvent(EventKind.PUSH_RANGE, name, thread, handle, node_id=node, cpu_ns=ns)


def pop(handle: int, ns: int, thread: int = 1, node: int = -1) -> LegacyEvent:
    return LegacyEvent(EventKind.POP_RANGE, "", thread, handle, node_id=node, cpu_ns=ns)


def written(*events: LegacyEvent) -> Any:
    out = io.StringIO()
    write_profiler_events_to_stream(out, events)
    return json.loads(out.getvalue())


def test_one_complete_event_per_pop() -> None:
    (event,) = written(START, push("aten::add", 5, 1_002_500), pop(5, 1_003_750))
    expected = {"name": "aten::add", "ph": "X", "ts": 2.5, "dur": 1.25, "tid": 1, "pid": "CPU Functions", "args": {}}
    assert event == expected


def test_events_stand_in_the_order_of_their_pops() -> None:
    names = [one["name"] for one in written(push("outer", 1, 1), push("inner", 2, 2), START, pop(2, 3), pop(1, 4))]
    assert names == ["inner", "outer"]


def test_times_before_the_start_are_negative() -> None:
    (event,) = written(START, push("early", 5, 999_000), pop(5, 1_000_000))
    assert (event["ts"], event["dur"]) == (-1.0, 1.0)


def test_open_ranges_marks_and_memory_are_left_out() -> None:
    memory = LegacyEvent(EventKind.MEMORY_ALLOC, "", 1)
    assert written(START, push("open", 5, 1), memory, LegacyEvent(EventKind.MARK, "now", 1)) == []


def test_nodes_number_their_ranges_alike() -> None:
    ranges = written(START, push("here", 5, 1, node=0), push("there", 5, 2, node=1), pop(5, 3, node=0), pop(5, 4, node=1))
    assert [one["name"] for one in ranges] == ["here", "there"]


@given(name=st.text(st.characters()) | st.sampled_from(['"', "\\", "\x00\x1f\x7f", "\ud800", "\u2028", '</script>"']))
def test_every_name_is_valid_json(name: str) -> None:
    (event,) = written(START, push(name, 5, 1), pop(5, 2))
    assert event["name"] == name.encode(errors="backslashreplace").decode()


def test_an_unmatched_pop_names_the_event() -> None:
    with pytest.raises(ProfilerError, match="Unmatched pop event: handle 6 of node -1 on thread 4"):
        written(START, push("op", 5, 1), pop(6, 2, thread=4))


def test_a_missing_start_mark() -> None:
    with pytest.raises(ProfilerError, match="Could not find __start_profile mark"):
        written(push("op", 5, 1), pop(5, 2))


def test_ranges_are_written_as_they_come() -> None:
    out = io.StringIO()
    with pytest.raises(ProfilerError):
        write_profiler_events_to_stream(out, [START, push("done", 5, 1), pop(5, 2), pop(6, 3)])
    assert '"done"' in out.getvalue()
