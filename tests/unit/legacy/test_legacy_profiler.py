"""The legacy profiler: what a run records, of which threads and processes, how it ends, and what
it refuses.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import _native, profile, record_function
from otel_recfn.batches.selection import Selected
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.state import (
    PropagatingThread,
    ThreadLocalState,
    ThreadLocalStateGuard,
    propagate,
)
from otel_recfn.callbacks.thread_locals import DebugInfoGuard, DebugInfoKind
from otel_recfn.errors import DebugInfoError
from otel_recfn.legacy import (
    LegacyEvent,
    ProfilerConfig,
    ProfilerDisableOptions,
    ProfilerError,
    ProfilerState,
    ThreadEventLists,
    add_event_list,
    disable_profiler_legacy,
    enable_profiler_legacy,
    mark,
    profiler_enabled,
)
from otel_recfn.legacy import run as legacy_run
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.model.events import ORDINAL_BITS, EventSource, RecordScope
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.in_memory import InMemorySink

pytestmark = pytest.mark.usefixtures("nothing_is_left")
CPU = ProfilerConfig(ProfilerState.CPU)
THREADS = 1 << 53 - ORDINAL_BITS
"""The threads whose event ids a double holds exactly."""
KEEP = ProfilerDisableOptions(cleanup_tls_state=False, consolidate=True)


def words(lists: ThreadEventLists) -> list[list[str]]:
    """Per thread, what happened, with the names of ranges also at their pops."""
    names = {
        event.handle: event.name
        for events in lists
        for event in events
        if event.kind == EventKind.PUSH_RANGE
    }
    return [
        [f"{event.kind_str} {names.get(event.handle, event.name)}" for event in events]
        for events in lists
    ]


def ranges(lists: ThreadEventLists) -> set[str]:
    """Names of what began."""
    return {
        event.name for events in lists for event in events if event.kind == EventKind.PUSH_RANGE
    }


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE_S)


def record(name: str) -> None:
    with record_function(name):
        pass


def use_up_threads() -> None:
    """Begin ranges in new threads until one has an event id beyond what a double holds exactly."""
    numbers = [0]

    def work() -> None:
        event_id = _native.begin("used", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
        _native.end(event_id)
        numbers.append(event_id >> ORDINAL_BITS)

    with profile(modules=False):
        while numbers[-1] < THREADS:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()


class TestEvents:
    def test_ranges_between_the_start_and_the_stop_mark(self) -> None:
        enable_profiler_legacy(CPU)
        with record_function("outer"):
            record("inner")
        lists = disable_profiler_legacy()
        expected = [
            "mark __start_profile",
            "push outer",
            "push inner",
            "pop inner",
            "pop outer",
            "mark __stop_profile",
        ]
        assert words(lists) == [expected]

    def test_the_collector_of_python_doesnt_go_through_them_as_they_are_made(self) -> None:
        enable_profiler_legacy(CPU)
        [record("range") for _ in range(3000)]
        (events,) = disable_profiler_legacy()
        before = gc.get_stats()[0]["collections"]
        assert (len(list(events)), gc.isenabled()) == (6002, True)
        assert gc.get_stats()[0]["collections"] - before <= 1  # where it is switched on again

    def test_what_a_record_function_says(self) -> None:
        enable_profiler_legacy(CPU)
        range_ = RecordFunction(RecordScope.BACKWARD_FUNCTION)
        range_.before("MulBackward0", sequence_nr=7)
        range_.set_forward_thread_id(3)
        range_.end()
        (events,) = disable_profiler_legacy()
        push, pop = events[1:3]
        assert (push.name, push.sequence_nr, push.scope) == (
            "MulBackward0",
            7,
            RecordScope.BACKWARD_FUNCTION,
        )
        assert push.thread_id == pop.thread_id == events[0].thread_id
        assert push.handle == pop.handle != 0
        assert push.cpu_elapsed_us(pop) >= 0

    def test_the_same_ids_as_every_other_capture(self) -> None:
        sink = InMemorySink()
        capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
        process_session().start(capture)
        enable_profiler_legacy(CPU)
        record("seen by both")
        (events,) = disable_profiler_legacy()
        process_session().stop(capture, PATIENCE_S)
        (seen,) = (event for event in sink.events() if event.name == "seen by both")
        (push,) = (event for event in events if event.name == "seen by both")
        assert (push.event_id, push.cpu_ns) == (seen.event_id, seen.start_ns)

    def test_each_has_the_node_id_of_its_moment(self) -> None:
        enable_profiler_legacy(CPU)
        try:
            with record_function("across"):
                for node_id in (3, 4):
                    RecordFunction.set_default_node_id(node_id)
                    record("range")
                    mark("mark")
        finally:
            (events,) = disable_profiler_legacy()
            RecordFunction.set_default_node_id(-1)
        found = [(event.kind_str, event.name, event.node_id) for event in events[1:-1]]
        assert found == [
            ("push", "across", -1),
            *[("push", "range", 3), ("pop", "", 3), ("mark", "mark", 3)],
            *[("push", "range", 4), ("pop", "", 4), ("mark", "mark", 4)],
            ("pop", "", 4),
        ]

    def test_their_handles_come_back_from_values_whatever_the_number_of_threads(self) -> None:
        def work() -> None:
            with record_function("outer"):
                record("inner")

        handles: list[int] = []
        for _ in range(2):
            enable_profiler_legacy(CPU)
            for _ in range(10):
                thread = PropagatingThread(target=work)
                thread.start()
                thread.join()
            events = [event for each in disable_profiler_legacy() for event in each]
            pushed = [event.handle for event in events if event.kind == EventKind.PUSH_RANGE]
            assert sorted(pushed) == sorted(
                event.handle for event in events if event.kind == EventKind.POP_RANGE
            )
            assert [
                LegacyEvent.from_value_list(event.to_value_list()).handle for event in events
            ] == [event.handle for event in events]
            handles += pushed
            use_up_threads()
        assert len(set(handles)) == len(handles) == 40

    def test_modules_are_no_record_functions(self) -> None:
        enable_profiler_legacy(CPU)
        _native.end(_native.begin("nn.Module: Linear", RecordScope.USER_SCOPE, EventSource.MODULE))
        assert ranges(disable_profiler_legacy()) == set()

    def test_a_range_from_before_has_no_events(self) -> None:
        with record_function("before"):
            enable_profiler_legacy(CPU)
        assert words(disable_profiler_legacy()) == [["mark __start_profile", "mark __stop_profile"]]

    def test_dropped_events_are_told_and_the_start_stays(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(legacy_run, "MAX_EVENTS", 3)
        enable_profiler_legacy(CPU)
        for number in range(5):
            record(f"range {number}")
        lists = disable_profiler_legacy()
        assert lists[0][0].name == "__start_profile"
        assert ranges(lists) == {"range 3", "range 4"}
        assert "the profiler kept its newest 3 events; 4 older ones were dropped" in caplog.text


class TestRefusals:
    def test_enabling_twice_in_a_thread(self) -> None:
        enable_profiler_legacy(CPU)
        with pytest.raises(
            ProfilerError, match="Profiler is already enabled on this thread; disable it first"
        ):
            enable_profiler_legacy(CPU)

    def test_kineto(self) -> None:
        with pytest.raises(ProfilerError, match=r"can't use Kineto.*torch\.profiler"):
            enable_profiler_legacy(ProfilerConfig(ProfilerState.KINETO))
        assert not profiler_enabled()

    def test_disabling_what_does_not_run(self) -> None:
        with pytest.raises(ProfilerError, match="Can't disable profiler when it's not running"):
            disable_profiler_legacy()

    def test_adding_events_to_what_does_not_run(self) -> None:
        with pytest.raises(ProfilerError, match="Profiler must be enabled"):
            add_event_list([])

    def test_a_disabled_run_does_not_run(self) -> None:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.DISABLED))
        assert not profiler_enabled()
        record("not recorded")
        with pytest.raises(ProfilerError, match="Can't disable profiler when it's not running"):
            disable_profiler_legacy()
        enable_profiler_legacy(CPU)  # it was taken away nevertheless
        assert "not recorded" not in ranges(disable_profiler_legacy())

    def test_disabling_below_other_debug_info(self) -> None:
        enable_profiler_legacy(CPU)
        with DebugInfoGuard(DebugInfoKind.TEST_INFO, "above"), pytest.raises(DebugInfoError):
            disable_profiler_legacy()
        assert profiler_enabled()

    def test_a_mark_where_nothing_runs_is_ignored(self) -> None:
        mark("nobody listens")
        enable_profiler_legacy(CPU)
        assert words(disable_profiler_legacy()) == [["mark __start_profile", "mark __stop_profile"]]


class TestRemoteEvents:
    def test_are_lists_of_their_own(self) -> None:
        remote = LegacyEvent.from_value_list([1, "rpc", 2, 9.0, 1, 0, 1_000, False, 0, -1, -1, []])
        enable_profiler_legacy(CPU)
        add_event_list([remote])
        add_event_list([])
        local, *others = disable_profiler_legacy()
        assert words([local]) == [["mark __start_profile", "mark __stop_profile"]]
        assert others == [[remote], []]


class TestThreads:
    def test_work_launched_from_the_thread_is(self) -> None:
        enable_profiler_legacy(CPU)
        state = ThreadLocalState()

        def work() -> bool:
            with ThreadLocalStateGuard(state):
                record("launched")
                enabled = profiler_enabled()
            record("afterwards")
            return enabled

        assert in_a_thread(work)
        here, there = disable_profiler_legacy()
        assert ranges([here]) == set()
        assert words([there]) == [["push launched", "pop launched"]]

    @pytest.mark.parametrize("run_it", [in_a_thread, lambda work: work()], ids=["thread", "inline"])
    def test_work_that_disables_the_run_takes_its_events_and_leaves_it_to_the_others(
        self, run_it: Any
    ) -> None:
        enable_profiler_legacy(CPU)
        record("before")
        state = ThreadLocalState()

        def work() -> tuple[set[str], bool]:
            with ThreadLocalStateGuard(state):
                record("in the work")
                return ranges(disable_profiler_legacy()), profiler_enabled()

        assert run_it(work) == ({"before", "in the work"}, False)
        assert profiler_enabled()
        record("after")
        assert ranges(disable_profiler_legacy()) == {"after"}
        assert not _native.recording()

    def test_a_task_that_disables_the_run_of_another_leaves_it(self) -> None:
        async def inner() -> set[str]:
            record("inner")
            return ranges(disable_profiler_legacy())

        async def outer() -> tuple[set[str], set[str]]:
            enable_profiler_legacy(CPU)
            found = await asyncio.create_task(propagate(inner()))
            record("outer")
            return found, ranges(disable_profiler_legacy())

        assert asyncio.run(propagate(outer())) == ({"inner"}, {"outer"})
        assert not _native.recording()

    def test_two_threads_have_runs_of_their_own(self) -> None:
        def profiled(name: str) -> set[str]:
            enable_profiler_legacy(CPU)
            both.wait()
            record(name)
            both.wait()
            return ranges(disable_profiler_legacy())

        both = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(profiled, name).result for name in ("first", "second")]
            assert [result(PATIENCE_S) for result in found] == [{"first"}, {"second"}]

    def test_a_nested_run_shadows_the_outer_one(self) -> None:
        without = ThreadLocalState()
        enable_profiler_legacy(CPU)
        record("outer before")
        with ThreadLocalStateGuard(without):
            enable_profiler_legacy(CPU)
            record("inner")
            inner = disable_profiler_legacy()
        record("outer after")
        outer = disable_profiler_legacy()
        assert ranges(inner) == {"inner"}
        assert ranges(outer) == {"outer before", "outer after"}


class TestDisableOptions:
    def test_without_cleanup_the_run_goes_on(self) -> None:
        enable_profiler_legacy(CPU)
        record("first")
        assert words(disable_profiler_legacy(KEEP)) == [
            ["mark __start_profile", "push first", "pop first", "mark __stop_profile"]
        ]
        assert profiler_enabled()
        record("second")
        assert words(disable_profiler_legacy()) == [
            ["push second", "pop second", "mark __stop_profile"]
        ]
        assert not profiler_enabled()

    def test_a_range_across_a_consolidation_is_told_when_it_ended(self) -> None:
        enable_profiler_legacy(CPU)
        with record_function("across"):
            assert ranges(disable_profiler_legacy(KEEP)) == set()
        assert ranges(disable_profiler_legacy()) == {"across"}

    def test_a_run_that_nobody_refers_to_ends(self) -> None:
        in_a_thread(lambda: enable_profiler_legacy(CPU))
        wait_until(lambda: not _native.recording())
        assert not _native.recording()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_begins_empty_and_the_parent_goes_on() -> None:
    enable_profiler_legacy(CPU)
    record("parent before")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            record("child")
            os.write(writing, repr(words(disable_profiler_legacy())).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    record("parent after")
    expected = [["mark __start_profile"], ["push child", "pop child", "mark __stop_profile"]]
    assert os.read(reading, 10_000).decode() == repr(expected)
    assert ranges(disable_profiler_legacy()) == {"parent before", "parent after"}
