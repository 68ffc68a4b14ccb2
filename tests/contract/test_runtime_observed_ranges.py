"""``record_function`` and callbacks, and a forked child."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from helpers.forked_work import in_child
from helpers.recording_helpers import Capture
from helpers.runtime_helpers import USER, Notes, in_thread, pairs, run_range
from helpers.timeouts import PATIENCE_S
from otel_recfn import _native, record_function  # what callbacks/ set for record_function
from otel_recfn.callbacks import registry
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import (
    add_global_callback,
    add_thread_local_callback,
    disable_callback,
    reenable_callback,
    remove_callback,
)
from otel_recfn.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("runtime")


def test_record_function_reaches_callbacks_with_its_args_as_input(runtime: Recorder) -> None:
    seen: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(
            lambda fn: seen.append((fn.name(), fn.scope(), tuple(fn.inputs())))
        ).needs_inputs(True)
    )
    with record_function("load", "batch 7"), record_function("plain"):
        pass
    assert seen == [("load", USER, ("batch 7",)), ("plain", USER, ())]


def test_record_function_passes_no_args_that_nobody_needs(runtime: Recorder) -> None:
    seen: list[Any] = []
    add_global_callback(RecordFunctionCallback(lambda fn: seen.append(fn.num_inputs())))
    with record_function("load", "batch 7"):
        pass
    assert seen == [0]


def test_record_function_is_recorded_and_observed_under_one_id(capture: Capture) -> None:
    seen: list[tuple[int, int]] = []
    add_global_callback(RecordFunctionCallback(lambda fn: seen.append((fn.event_id, fn.handle()))))
    with pytest.raises(ValueError, match="x"), record_function("load"):
        raise ValueError("x")
    capture.finish()
    (row,) = capture.rows()
    assert [(row.event_id, row.handle)] == seen
    assert row.error == "ValueError: x"


def test_record_function_is_observed_only_while_somebody_wants_it(
    runtime: Recorder, notes: Notes
) -> None:
    assert _native.range_observer() is None
    handle = add_global_callback(notes.callback())
    assert _native.range_observer() is not None
    disable_callback(handle)
    assert _native.range_observer() is None
    reenable_callback(handle)
    assert _native.range_observer() is not None
    remove_callback(handle)
    assert _native.range_observer() is None


def test_a_thread_that_took_its_callbacks_with_it_leaves_nothing_behind(
    runtime: Recorder, notes: Notes
) -> None:
    in_thread(lambda: add_thread_local_callback(notes.callback()))
    with record_function("load"):
        pass
    assert _native.range_observer() is None
    assert notes == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_may_add_and_remove_although_another_thread_was_about_to(
    notes: Notes,
) -> None:

    held = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with registry._lock:  # noqa: SLF001 - a thread holds it for a moment, which a test can't meet
            held.set()
            done.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    handle = add_global_callback(notes.callback())
    thread.start()
    held.wait(PATIENCE_S)

    def check() -> None:
        run_range("inherited")
        remove_callback(handle)
        run_range("unseen")
        assert notes == pairs("inherited")

    in_child(check)
    done.set()
    thread.join(PATIENCE_S)
