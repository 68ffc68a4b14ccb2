"""The map of debug info: slots, shadowing, guards (source: ``c10::ThreadLocalDebugInfo``)."""

from __future__ import annotations

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

PROFILER, TEST = DebugInfoKind.PROFILER_STATE, DebugInfoKind.TEST_INFO


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    set_current_debug_info(None)


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
    with pytest.raises(
        DebugInfoError, match="of kind TEST_INFO, not PROFILER_STATE; pop that one first"
    ):
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


def test_listeners_hear_of_the_profiler_state_where_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_locals, "_profiler_listeners", [])
    heard: list[Any] = []
    on_profiler_state(heard.append)
    with (
        DebugInfoGuard(PROFILER, "outer"),
        DebugInfoGuard(TEST, "unrelated"),
        DebugInfoGuard(PROFILER, "inner"),
    ):
        state = ThreadLocalState()
    assert heard == ["outer", "inner", "outer", None]
    heard.clear()
    with ThreadLocalStateGuard(state):
        assert heard == ["inner"]
    assert heard == ["inner", None]
