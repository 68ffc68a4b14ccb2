"""Which threads and processes take part in a run of the legacy profiler, and how it ends."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from legacy_runs import CPU, KEEP, in_a_thread, ranges, record, words

from otel_recfn import record_function
from otel_recfn.callbacks.state import ThreadLocalState, ThreadLocalStateGuard
from otel_recfn.legacy import (
    disable_profiler_legacy,
    enable_profiler_legacy,
    profiler_enabled,
)
from otel_recfn.recording.recorder import recorder
from patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("nothing_is_left")


class TestThreads:
    def test_other_threads_are_not_profiled(self) -> None:
        enable_profiler_legacy(CPU)
        in_a_thread(lambda: record("elsewhere"))
        assert ranges(disable_profiler_legacy()) == set()

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
        assert words(disable_profiler_legacy()) == [["push second", "pop second", "mark __stop_profile"]]
        assert not profiler_enabled()

    def test_a_range_across_a_consolidation_is_told_when_it_ended(self) -> None:
        enable_profiler_legacy(CPU)
        with record_function("across"):
            assert ranges(disable_profiler_legacy(KEEP)) == set()
        assert ranges(disable_profiler_legacy()) == {"across"}

    def test_a_run_that_nobody_refers_to_ends(self) -> None:
        in_a_thread(lambda: enable_profiler_legacy(CPU))
        wait_until(lambda: not recorder.recording)
        assert not recorder.recording


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
