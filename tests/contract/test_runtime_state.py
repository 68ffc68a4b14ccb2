"""A thread's state, captured in one thread and installed in another (source:
``at::ThreadLocalState``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.example_counts import examples
from helpers.runtime_helpers import Notes, in_thread, pairs, run_range
from helpers.timeouts import PATIENCE_S
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import (
    add_global_callback,
    add_thread_local_callback,
    disable_callback,
    get_step_callbacks,
    has_thread_local_callbacks,
    reenable_callback,
    remove_callback,
)
from otel_recfn.callbacks.state import (
    RecordFunctionTLS,
    ThreadLocalState,
    ThreadLocalStateGuard,
    get_record_function_tls,
    set_record_function_tls,
)
from otel_recfn.callbacks.thread_locals import DebugInfoGuard, DebugInfoKind, debug_info_get
from otel_recfn.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("runtime")
TEST_INFO = DebugInfoKind.TEST_INFO


def test_the_tls_of_a_thread_can_be_read_and_set(notes: Notes) -> None:
    handle = add_thread_local_callback(notes.callback())
    disable_callback(handle)
    tls = get_record_function_tls()
    assert [(entry.handle, entry.enabled) for entry in tls.sorted_tls_callbacks] == [
        (handle, False)
    ]
    assert tls.tls_record_function_enabled
    set_record_function_tls(RecordFunctionTLS())
    reenable_callback(handle)  # not here any more
    set_record_function_tls(tls)
    run_range("op")
    assert notes == []
    reenable_callback(handle)
    run_range("op")
    assert notes == pairs("op")


def test_a_state_captured_in_one_thread_is_installed_in_another(notes: Notes) -> None:
    add_thread_local_callback(notes.callback())
    with DebugInfoGuard(TEST_INFO, "launching"):
        state = ThreadLocalState()

    def work() -> list[Any]:
        with ThreadLocalStateGuard(state):
            run_range("there")
            inside = debug_info_get(TEST_INFO)
        run_range("afterwards")
        return [inside, debug_info_get(TEST_INFO), has_thread_local_callbacks()]

    assert in_thread(work) == ["launching", None, False]
    assert notes == pairs("there")


def test_a_snapshot_is_not_changed_by_what_comes_later(notes: Notes) -> None:
    first = add_thread_local_callback(notes.callback("first"))
    state = ThreadLocalState()
    add_thread_local_callback(notes.callback("second"))
    remove_callback(first)
    with ThreadLocalStateGuard(state):
        run_range("op")
    assert {note[2] for note in notes} == {"first"}


def test_a_callback_that_failed_is_not_installed_again() -> None:
    add_thread_local_callback(RecordFunctionCallback(lambda fn: 1 / 0))
    state = ThreadLocalState()
    run_range("op")
    with ThreadLocalStateGuard(state):
        assert not has_thread_local_callbacks()


@examples(15)
@given(
    scripts=st.lists(
        st.lists(st.sampled_from(["add", "remove", "disable", "reenable"]), max_size=30),
        min_size=2,
        max_size=4,
    )
)
def test_the_set_of_callbacks_under_concurrent_changes(
    runtime: Recorder, scripts: list[list[str]]
) -> None:
    started = threading.Barrier(len(scripts) + 1, timeout=PATIENCE_S)
    stop = threading.Event()
    starts: dict[int, int] = {}
    kept: list[dict[int, bool]] = [{} for _ in scripts]
    broken: list[str] = []

    def count(difference: int) -> Callable[..., None]:
        def run(fn: Any, context: Any = None) -> None:
            starts[threading.get_ident()] = starts.get(threading.get_ident(), 0) + difference

        return run

    def change(mine: dict[int, bool], script: list[str]) -> None:
        started.wait()
        for step in script:
            if step == "add":
                mine[add_global_callback(RecordFunctionCallback(count(1), count(-1)))] = True
            elif mine:
                handle = next(iter(mine))
                if step == "remove":
                    remove_callback(handle)
                    del mine[handle]
                else:
                    (disable_callback if step == "disable" else reenable_callback)(handle)
                    mine[handle] = step == "reenable"

    def observe() -> None:
        started.wait()
        while not stop.is_set():
            run_range("op")
            handles = [pair.handle for pair in get_step_callbacks(0).callbacks]  # type: ignore[arg-type]
            if handles != sorted(set(handles)):
                broken.append(f"out of order: {handles}")

    threads = [
        threading.Thread(target=change, args=each) for each in zip(kept, scripts, strict=True)
    ]
    observer = threading.Thread(target=observe)
    for thread in (*threads, observer):
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    stop.set()
    observer.join(PATIENCE_S)
    left = {handle: enabled for mine in kept for handle, enabled in mine.items()}
    running = [pair.handle for pair in get_step_callbacks(0).callbacks]  # type: ignore[arg-type]
    for handle in left:
        remove_callback(handle)
    assert broken == []
    assert running == sorted(handle for handle, enabled in left.items() if enabled)
    assert all(difference == 0 for difference in starts.values()), (
        "a start without its end, or the other way around"
    )
