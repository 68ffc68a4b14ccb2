"""What belongs to a thread reaches our ranges in the threads in which PyTorch works for it, as
it reaches PyTorch's own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import otel_recfn
from otel_recfn import RecordScope, legacy, observing
from otel_recfn.callbacks.thread_locals import (
    KEY,
    PropagatedState,
    TorchState,
    _local,
    debug_info_get,
)
from otel_recfn.observing import (
    DebugInfoGuard,
    DebugInfoKind,
    DisableRecordFunctionGuard,
    RecordFunctionCallback,
)

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from helpers.torch_programs import reentrant_training  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_callbacks_left")]


def test_pytorch_has_a_reference_to_what_it_keeps() -> None:
    """Else the process crashes when it gives that back."""
    counts: list[int] = []

    def count() -> None:
        carrier = TorchState(
            torch._C._is_key_in_tls, torch._C._get_obj_in_tls, torch._C._stash_obj_in_tls
        )
        kept = PropagatedState()
        counts.append(sys.getrefcount(kept))
        carrier.put(kept)
        counts.append(sys.getrefcount(kept))
        carrier.put(None)
        counts.append(sys.getrefcount(kept))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    alone = counts[0]
    assert counts == [alone, alone + 1, alone]


@pytest.mark.skipif(
    not hasattr(torch._C, "_remove_obj_from_tls"), reason="this PyTorch gives nothing back"
)
def test_nothing_is_left_in_a_thread_that_has_worked_for_another_or_ends() -> None:
    """PyTorch takes the GIL for what is left as the thread ends, and a process that ends
    meanwhile is aborted.
    """
    left: list[bool] = []
    observing.add_thread_local_callback(noting([]))
    work = observing.propagate(lambda: left.append(torch._C._is_key_in_tls(KEY)))

    def work_for_another() -> None:
        work()
        left.append(torch._C._is_key_in_tls(KEY))
        observing.add_thread_local_callback(noting([]))
        left.append(torch._C._is_key_in_tls(KEY))
        del _local.state  # as Python does at the end of a thread
        left.append(torch._C._is_key_in_tls(KEY))

    thread = threading.Thread(target=work_for_another)
    thread.start()
    thread.join()
    assert left == [True, False] * 2


def in_autograds_thread(work: Callable[[], None]) -> None:
    threads: list[int] = []

    def noted() -> None:
        threads.append(threading.get_ident())
        work()

    reentrant_training(torch.tensor(70.0, requires_grad=True), noted)
    assert threads != [threading.get_ident()]


def both_kinds() -> None:
    for _ in range(10):
        with otel_recfn.record_function("ours"):
            torch.ones(2).cos()


@pytest.fixture
def seen() -> list[str]:
    return []


def noting(seen: list[str]) -> RecordFunctionCallback:
    scopes = {RecordScope.FUNCTION, RecordScope.USER_SCOPE}
    return RecordFunctionCallback(lambda range_: seen.append(range_.name())).scopes(scopes)


def test_callbacks_of_the_thread_that_launched_see_both_kinds_of_ranges(seen: list[str]) -> None:
    handle = observing.add_thread_local_callback(noting(seen))
    in_autograds_thread(both_kinds)
    assert (seen.count("aten::cos"), seen.count("ours")) == (10, 10)
    observing.remove_callback(handle)
    in_autograds_thread(both_kinds)
    assert (seen.count("aten::cos"), seen.count("ours")) == (10, 10)


def test_they_see_ranges_in_a_thread_that_left_its_next_ones_unobserved(seen: list[str]) -> None:
    observing.add_global_callback(noting([]).sampling_prob(0.0))
    in_autograds_thread(both_kinds)
    observing.add_thread_local_callback(noting(seen))
    in_autograds_thread(both_kinds)
    assert (seen.count("aten::cos"), seen.count("ours")) == (10, 10)


def test_where_the_launching_thread_is_switched_off_nobody_sees_either(seen: list[str]) -> None:
    observing.add_global_callback(noting(seen))
    with otel_recfn.profile() as prof, DisableRecordFunctionGuard():
        in_autograds_thread(both_kinds)
    assert not {"ours", "aten::cos"} & {*seen, *(event.name for event in prof.events())}
    in_autograds_thread(both_kinds)
    assert seen.count("ours") == 10


def test_debug_info_the_profiler_and_its_marks_reach_it() -> None:
    known: list[Any] = []

    def work() -> None:
        known.extend([debug_info_get(DebugInfoKind.TEST_INFO), legacy.profiler_enabled()])
        legacy.mark("there")
        both_kinds()

    with DebugInfoGuard(DebugInfoKind.TEST_INFO, "launched"):
        legacy.enable_profiler_legacy(legacy.ProfilerConfig(legacy.ProfilerState.CPU))
        in_autograds_thread(work)
        lists = legacy.disable_profiler_legacy()
    assert known == ["launched", True]
    names = [event.name for events in lists for event in events]
    assert (names.count("there"), names.count("ours"), names.count("aten::cos")) == (1, 10, 10)
    in_autograds_thread(
        lambda: known.extend([debug_info_get(DebugInfoKind.TEST_INFO), legacy.profiler_enabled()])
    )
    assert known[2:] == [None, False]


# --- one switch


def test_pytorchs_switch_is_ours(seen: list[str]) -> None:
    observing.add_thread_local_callback(noting(seen))
    with otel_recfn.profile() as prof:
        torch.autograd._enable_record_function(False)
        try:
            assert not observing.is_record_function_enabled()
            both_kinds()
        finally:
            torch.autograd._enable_record_function(True)
        assert observing.is_record_function_enabled()
        assert not seen
        both_kinds()
    assert (seen.count("aten::cos"), seen.count("ours")) == (10, 10)
    assert [event.name for event in prof.events()].count("ours") == 10


def test_our_switch_is_pytorchs() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as theirs:
        with DisableRecordFunctionGuard():
            torch.ones(2).sin()
        torch.ones(2).cos()
    names = {event.name for event in theirs.events()}
    assert "aten::cos" in names
    assert "aten::sin" not in names


@pytest.mark.parametrize(
    "switch_on", [observing.enable_record_function, torch.autograd._enable_record_function]
)
def test_our_switch_hides_python_calls_too(switch_on: Callable[[bool], None]) -> None:
    def called() -> None:
        torch.ones(2).sin()

    with otel_recfn.profile(python_calls=True) as prof:
        observing.enable_record_function(False)
        called()
        switch_on(True)
        called()
    names = [event.name.rpartition(" ")[2] for event in prof.events()]
    assert (names.count("called"), names.count("aten::sin")) == (1, 1)


def test_ends_of_ranges_too_deep_to_be_recorded_are_nobodys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As ends of ranges that began in other threads they would take the place of real ones."""
    with otel_recfn.profile() as prof, ExitStack() as ranges:
        for _ in range(16 * 1024 + 5000):
            ranges.enter_context(torch.profiler.record_function("range"))
    assert len(prof.events()) == 16 * 1024
    assert "dropped.buffer_full=5000" in caplog.text
    assert "incomplete" not in caplog.text
