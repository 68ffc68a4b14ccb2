"""The legacy profiler's trace, to a path or a stream: valid JSON whatever the names; leaving
RecordProfile never raises.
"""

from __future__ import annotations

import dataclasses
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn import record_function
from otel_recfn.legacy import (
    ProfilerConfig,
    ProfilerError,
    ProfilerState,
    RecordProfile,
    profiler_enabled,
)
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy
from otel_recfn.legacy.record_profile import write_profiler_events_to_stream


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left on device")


def profiled_into(out: str | Path | io.StringIO) -> None:
    with RecordProfile(out), record_function("step"), record_function('load "batch"'):
        pass


def test_to_a_path(tmp_path: Path) -> None:
    profiled_into(tmp_path / "steps.trace")
    events = json.loads((tmp_path / "steps.trace").read_text())
    assert [event["name"] for event in events] == ['load "batch"', "step"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events)


def test_closed_by_hand_once() -> None:
    out = io.StringIO()
    profile = RecordProfile(out)
    assert profiler_enabled()
    profile.close()
    profile.close()
    assert not profiler_enabled()
    assert out.getvalue() == "[\n]\n"


def test_dropped_it_ends_and_writes() -> None:
    out = io.StringIO()
    profile = RecordProfile(out)
    with record_function("step"):
        pass
    del profile
    assert not profiler_enabled()
    assert [event["name"] for event in json.loads(out.getvalue())] == ["step"]
    profiled_into(io.StringIO())  # another one may begin


def test_dropped_in_another_thread_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    held = [RecordProfile(io.StringIO())]

    def drop() -> Any:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
        held.clear()
        return disable_profiler_legacy()

    with ThreadPoolExecutor(1) as pool:
        (thread_events,) = pool.submit(drop).result()
    assert len(thread_events) == 2  # its run went on until it ended it
    assert "the profile could not be written" in caplog.text
    disable_profiler_legacy()


def test_a_stream_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    profiled_into(FullDisk())
    assert "the profile could not be written" in caplog.text
    assert "no space left on device" in caplog.text
    assert not profiler_enabled()


def test_a_profiler_that_somebody_disabled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with RecordProfile(io.StringIO()):
        disable_profiler_legacy()
    assert "Can't disable profiler when it's not running" in caplog.text


def test_the_blocks_own_error_goes_on(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        RecordProfile(tmp_path / "steps.trace"),
        record_function("step"),
    ):
        raise ZeroDivisionError
    assert [event["name"] for event in json.loads((tmp_path / "steps.trace").read_text())] == [
        "step"
    ]


def test_a_path_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordProfile(tmp_path / "missing" / "steps.trace")
    assert not profiler_enabled()


def test_a_second_one_in_the_thread_leaves_the_first_its_file(tmp_path: Path) -> None:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    try:
        with pytest.raises(ProfilerError, match="already enabled"):
            RecordProfile(tmp_path / "steps.trace")
        assert not (tmp_path / "steps.trace").exists()
    finally:
        disable_profiler_legacy()


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
    expected = {
        "name": "aten::add",
        "ph": "X",
        "ts": 2.5,
        "dur": 1.25,
        "tid": 1,
        "pid": "CPU Functions",
        "args": {},
    }
    assert event == expected


def test_events_stand_in_the_order_of_their_pops() -> None:
    names = [
        one["name"]
        for one in written(push("outer", 1, 1), push("inner", 2, 2), START, pop(2, 3), pop(1, 4))
    ]
    assert names == ["inner", "outer"]


def test_times_before_the_start_are_negative() -> None:
    (event,) = written(START, push("early", 5, 999_000), pop(5, 1_000_000))
    assert (event["ts"], event["dur"]) == (-1.0, 1.0)


def test_open_ranges_marks_and_memory_are_left_out() -> None:
    memory = LegacyEvent(EventKind.MEMORY_ALLOC, "", 1)
    assert written(START, push("open", 5, 1), memory, LegacyEvent(EventKind.MARK, "now", 1)) == []


def test_nodes_number_their_ranges_alike() -> None:
    ranges = written(
        START,
        push("here", 5, 1, node=0),
        push("there", 5, 2, node=1),
        pop(5, 3, node=0),
        pop(5, 4, node=1),
    )
    assert [one["name"] for one in ranges] == ["here", "there"]


def test_a_range_of_this_process_may_begin_and_end_as_two_nodes() -> None:
    events = [push("here", 5, 1, node=0), pop(5, 2, node=1)]
    (event,) = written(START, *[dataclasses.replace(event, event_id=7) for event in events])
    assert event["name"] == "here"


@given(
    name=st.text(st.characters())
    | st.sampled_from(['"', "\\", "\x00\x1f\x7f", "\ud800", "\u2028", '</script>"'])
)
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
