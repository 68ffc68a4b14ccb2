"""What the contract tests are given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import otel_recfn
from helpers.calling_program import Traced
from helpers.recording_helpers import Capture, Clock, Worker, reset, workers_of
from helpers.runtime_helpers import Notes
from helpers.step_program import Program
from otel_recfn.callbacks.registry import add_thread_local_callback
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.recorder import recorder as the_recorder
from otel_recfn.session import captures


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """The process's recorder, which records nothing and holds nothing.

    Its counters and thread numbers may have a past.
    """
    reset(the_recorder)
    yield the_recorder
    reset(the_recorder)


@pytest.fixture
def runtime(recorder: Recorder) -> Iterator[Recorder]:
    """The recorder, under a runtime without callbacks."""
    from otel_recfn.callbacks import registry, state

    yield recorder
    registry.clear_callbacks()
    state.enable_record_function()


@pytest.fixture
def notes() -> Notes:
    """What callbacks are told, none yet."""
    return Notes()


@pytest.fixture
def own_notes() -> Notes:
    """What this thread's own callback is told: elsewhere it runs only where this thread's state
    is installed.
    """
    notes = Notes()
    add_thread_local_callback(notes.callback())
    return notes


@pytest.fixture
def capture(recorder: Recorder) -> Capture:
    """The recorder, recording everything."""
    return Capture(recorder)


@pytest.fixture
def record_function(capture: Capture) -> type[Any]:
    return otel_recfn.record_function


@pytest.fixture
def workers(recorder: Recorder) -> Iterator[list[Worker]]:
    """Threads that do one thing at a time, when told."""
    with workers_of(3) as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which drains are made, which a test moves in place of waiting."""
    clock = Clock()
    monkeypatch.setattr(captures, "time", clock)
    return clock


@pytest.fixture
def make_program(recorder: Recorder) -> Iterator[Callable[..., Program]]:
    """Makes programs that mark their steps."""
    made: list[Program] = []

    def make(**provider: Any) -> Program:
        made.append(Program(recorder, **provider))
        return made[-1]

    yield make
    for program in made:
        program.close()


@pytest.fixture
def program(make_program: Callable[..., Program]) -> Program:
    return make_program()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What a collection calls, a finalizer or what Hypothesis times it with, would be among the
    calls that a test sees.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def traced(recorder: Recorder, no_garbage_collection: None) -> Iterator[Traced]:
    """Begins captures of Python calls; ends what a test left of them."""
    made = Traced(recorder)
    yield made
    made.close()
