"""The map of debug info: slots, shadowing, guards (source: ``c10::ThreadLocalDebugInfo``)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from otel_recfn.callbacks import thread_locals
from otel_recfn.callbacks.state import ThreadLocalState, ThreadLocalStateGuard
from otel_recfn.callbacks.thread_locals import (
    DebugInfoGuard,
    DebugInfoKind,
    debug_info_get,
    debug_info_peek,
    debug_info_pop,
    debug_info_push,
    on_profiler_state,
    set_current_debug_info,
)
from otel_recfn.errors import DebugInfoError
from patience import PATIENCE_S

PROFILER, TEST = DebugInfoKind.PROFILER_STATE, DebugInfoKind.TEST_INFO


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    set_current_debug_info(None)


def test_slots_are_pytorchs() -> None:
    assert [kind.name for kind in DebugInfoKind] == [
        "PRODUCER_INFO",
        "MOBILE_RUNTIME_INFO",
        "PROFILER_STATE",
        "INFERENCE_CONTEXT",
        "PARAM_COMMS_INFO",
        "TEST_INFO",
        "TEST_INFO_2",
    ]


def test_a_slot_shows_what_was_pushed_last_and_slots_are_apart() -> None:
    debug_info_push(PROFILER, "outer")
    debug_info_push(TEST, "test")
    debug_info_push(PROFILER, "inner")
    assert (debug_info_get(PROFILER), debug_info_get(TEST)) == ("inner", "test")
    assert debug_info_pop(PROFILER) == "inner"
    assert (debug_info_get(PROFILER), debug_info_get(TEST)) == ("outer", "test")
    assert debug_info_get(DebugInfoKind.PRODUCER_INFO) is None


def test_peek_leaves_it_there() -> None:
    debug_info_push(PROFILER, "state")
    assert debug_info_peek(PROFILER) == "state"
    assert debug_info_get(PROFILER) == "state"


@pytest.mark.parametrize("take", [debug_info_pop, debug_info_peek])
def test_only_the_innermost_is_popped(take: Any) -> None:
    with pytest.raises(DebugInfoError, match="push one of kind PROFILER_STATE first"):
        take(PROFILER)
    debug_info_push(PROFILER, "state")
    debug_info_push(TEST, "test")
    with pytest.raises(DebugInfoError, match="of kind TEST_INFO, not PROFILER_STATE; pop that one first"):
        take(PROFILER)
    assert debug_info_get(PROFILER) == "state"


def test_a_guard_restores_the_whole_map() -> None:
    with DebugInfoGuard(TEST, "outer"):
        with DebugInfoGuard(TEST, "inner"):
            debug_info_push(PROFILER, "left behind")
            assert debug_info_get(TEST) == "inner"
        assert (debug_info_get(TEST), debug_info_get(PROFILER)) == ("outer", None)
    assert debug_info_get(TEST) is None


def test_a_guard_without_info_changes_nothing() -> None:
    with DebugInfoGuard(TEST, "outer"), DebugInfoGuard(TEST, None):
        assert debug_info_get(TEST) == "outer"


def test_launched_work_shares_the_map_as_it_was_and_neither_sees_the_others_changes() -> None:
    pushed, seen = threading.Event(), []
    debug_info_push(TEST, "shared")
    state = ThreadLocalState()

    def work() -> None:
        pushed.wait(PATIENCE_S)
        with ThreadLocalStateGuard(state):
            seen.append(debug_info_get(TEST))
            debug_info_push(TEST, "the worker's")
        seen.append(debug_info_get(TEST))

    thread = threading.Thread(target=work)
    thread.start()
    debug_info_pop(TEST)
    debug_info_push(PROFILER, "later")
    pushed.set()
    thread.join(PATIENCE_S)
    assert seen == ["shared", None]
    assert debug_info_get(TEST) is None


def test_listeners_hear_of_the_profiler_state_where_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_locals, "_profiler_listeners", [])
    heard: list[Any] = []
    on_profiler_state(heard.append)
    with DebugInfoGuard(PROFILER, "outer"), DebugInfoGuard(TEST, "unrelated"), DebugInfoGuard(PROFILER, "inner"):
        state = ThreadLocalState()
    assert heard == ["outer", "inner", "outer", None]
    heard.clear()
    with ThreadLocalStateGuard(state):
        assert heard == ["inner"]
    assert heard == ["inner", None]
