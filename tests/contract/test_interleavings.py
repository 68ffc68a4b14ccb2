"""Random interleavings of threads, drops, open ranges and drains, against a model of the contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interleaving import Driver
from recording_helpers import Capture, reset, workers_of

from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from thoroughness import examples

WORKERS = 3
worker = st.integers(0, WORKERS - 1)
which = st.integers(0, 30)

# The recorder is one for all examples, as it is one in a process; ``reset`` and fresh threads make each example new.
many_examples = examples(200)

begin = st.tuples(st.just("begin"), worker, st.booleans())
begin_sync = st.tuples(st.just("begin"), worker)
end_innermost = st.tuples(st.just("end_innermost"), worker)
end_open = st.tuples(st.just("end_open"), worker, which)
end_any = st.tuples(st.just("end_any"), worker, which)
burst = st.tuples(st.just("burst"), worker, st.integers(1, 400))
mark = st.tuples(st.just("mark"), worker)
switch = st.tuples(st.just("switch"), worker)
drain = st.tuples(st.just("drain"))
seal = st.tuples(st.just("seal"))
restart = st.tuples(st.just("restart"))


def drive(recorder: Recorder, steps: list[tuple], buffer_bytes: int = DEFAULT_BUFFER_BYTES) -> None:
    reset(recorder)
    with workers_of(WORKERS) as workers:
        driver = Driver(Capture(recorder, buffer_bytes), workers)
        for name, *arguments in steps:
            getattr(driver, name)(*arguments)
        driver.check()


@many_examples
@given(steps=st.lists(st.one_of(begin_sync, end_innermost, drain), max_size=60))
def test_ranges_that_nest(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@many_examples
@given(steps=st.lists(st.one_of(begin, begin_sync, end_innermost, end_open, end_any, drain), max_size=60))
def test_ranges_that_end_anywhere(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@many_examples
@given(steps=st.lists(st.one_of(begin, begin_sync, end_innermost, end_open, end_any, drain, seal, restart), max_size=60))
def test_ranges_that_are_sealed_while_recording(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@many_examples
@given(
    steps=st.lists(st.one_of(begin_sync, begin_sync, mark, switch, end_innermost, end_open, drain, seal, restart), max_size=60)
)
def test_marks_and_threads_that_are_switched_off(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@pytest.mark.one_python
@many_examples
@given(steps=st.lists(st.one_of(burst, burst, begin_sync, mark, end_innermost, end_open, drain), max_size=40))
def test_buffers_that_overflow(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps, buffer_bytes=4096)
