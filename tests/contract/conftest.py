"""Every test here runs on both recorders, and sees them through the protocol only.

The native one is skipped, with its reason, where it isn't built; ``RECFN_REQUIRE_NATIVE=1`` makes that a failure.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from calling_program import Traced
from recording_helpers import Capture, Worker, reset, workers_of
from runtime_helpers import Notes

from otel_recfn.recording.protocol import Recorder
from otel_recfn.runtime.callbacks import add_thread_local_callback


@cache
def native_recorder() -> Recorder:
    """The one native recorder of this process: its state is the process's."""
    from otel_recfn.recording import backend

    chosen = backend.choose()
    if chosen.kind == "native":
        return chosen.recorder
    from otel_recfn.recording.native_recorder import NativeRecorder

    return NativeRecorder()


def make_recorder(kind: str) -> Recorder:
    if kind == "python":
        from otel_recfn.recording.python.recorder import PythonRecorder

        return PythonRecorder()
    try:
        return native_recorder()
    except ImportError as error:
        if os.environ.get("RECFN_REQUIRE_NATIVE") == "1":
            pytest.fail(f"RECFN_REQUIRE_NATIVE=1, but the native recorder can't be imported: {error}")
        pytest.skip(f"the native recorder can't be imported: {error}")


@pytest.fixture(params=["python", "native"])
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """A recorder that records nothing and holds nothing. Its counters and thread numbers may have a past."""
    made = make_recorder(request.param)
    reset(made)
    yield made
    reset(made)


@pytest.fixture
def runtime(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The recorder as the process's, under a runtime without callbacks."""
    from otel_recfn.runtime import callbacks, guards, process_recorder

    monkeypatch.setattr(process_recorder, "recorder", recorder)
    yield recorder
    callbacks.clear_callbacks()
    guards.enable_record_function()


@pytest.fixture
def notes() -> Notes:
    """What callbacks are told, none yet."""
    return Notes()


@pytest.fixture
def own_notes() -> Notes:
    """What this thread's own callback is told: elsewhere it runs only where this thread's state is installed."""
    notes = Notes()
    add_thread_local_callback(notes.callback())
    return notes


@pytest.fixture
def capture(recorder: Recorder) -> Capture:
    """The recorder, recording everything."""
    return Capture(recorder)


@pytest.fixture
def record_function(capture: Capture) -> type[Any]:
    return capture.recorder.record_function


@pytest.fixture
def workers(recorder: Recorder) -> Iterator[list[Worker]]:
    """Threads that do one thing at a time, when told."""
    with workers_of(3) as made:
        yield made


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What a collection calls, a finalizer or what Hypothesis times it with, would be among the calls that a test sees."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def traced(recorder: Recorder, no_garbage_collection: None) -> Iterator[Traced]:
    """Begins captures of Python calls; ends what a test left of them."""
    made = Traced(recorder)
    yield made
    made.close()
