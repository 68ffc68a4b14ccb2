"""What a thread worked in a range, and which ranges tell it."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import greenlet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context

from helpers import source_calls
from helpers.cpu_work import work
from helpers.example_counts import examples
from helpers.recording_helpers import ASYNC, SOURCE, USER, Capture, Worker, by_name, reset
from helpers.timeouts import PATIENCE_S
from otel_recfn import record_function
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder

FUNCTION = int(RecordScope.FUNCTION)
MODULE = int(EventSource.MODULE)
STEP = int(EventSource.STEP)
WORK_NS = 20_000_000


def wait_for_work() -> None:
    """Until another thread has worked."""
    thread = threading.Thread(target=work, args=[WORK_NS])
    thread.start()
    thread.join(PATIENCE_S)


def in_range(capture: Capture, body: Callable[[], object]) -> Event:
    """The row of a range around it."""
    with record_function("range"):
        body()
    return by_name(capture.finish())["range"]


def test_work_is_counted(capture: Capture) -> None:
    row = in_range(capture, lambda: work(WORK_NS))
    assert WORK_NS <= row.cpu_time_ns <= row.duration_ns + tolerance(row)


def test_waiting_is_not(capture: Capture) -> None:
    row = in_range(capture, wait_for_work)
    assert row.duration_ns >= WORK_NS
    assert 0 <= row.cpu_time_ns < WORK_NS / 2


def tolerance(row: Event) -> int:
    """Of two clocks."""
    return row.duration_ns // 50 + 50_000


def test_a_failure_tells_it_too(capture: Capture) -> None:
    def fail() -> None:
        work(WORK_NS)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_range(capture, fail)
    [row] = capture.finish()
    assert (row.error, row.cpu_time_ns >= WORK_NS) == ("ValueError: no", True)


def test_whoever_ends_a_range_is_told(capture: Capture) -> None:
    cpu_time_ns = source_calls.end(capture.begin())
    outer = capture.begin()
    inner_cpu_time_ns = source_calls.end(capture.begin("inner"))
    capture.end(outer)
    rows = capture.finish()
    assert (cpu_time_ns, inner_cpu_time_ns) == (rows[0].cpu_time_ns, -1)
    assert source_calls.end(0) == -1


KINDS = st.sampled_from([(USER, SOURCE), (USER, MODULE), (USER, STEP), (FUNCTION, SOURCE)])
STEPS = st.lists(st.one_of(KINDS, st.sampled_from(["end", "drain"])), max_size=40)


@examples(100)
@given(steps=STEPS)
def test_which_ranges_tell_it(recorder: Recorder, steps: list[Any]) -> None:
    reset(recorder)
    capture = Capture(recorder)
    expected: dict[int, bool] = {}
    open_ranges: list[tuple[int, int]] = []
    for step in [*steps, *["end"] * len(steps)]:
        if step == "drain":
            capture.drain()
        elif step != "end":
            scope, source = step
            is_top = not open_ranges or open_ranges[-1][1] == STEP
            event_id = source_calls.begin("range", scope, source)
            expected[event_id] = scope == USER and (source in (MODULE, STEP) or is_top)
            open_ranges.append((event_id, source))
        elif open_ranges:
            source_calls.end(open_ranges.pop()[0])
    capture.finish()
    assert {row.event_id: row.cpu_time_ns >= 0 for row in capture.rows()} == expected
    for row in capture.rows():
        assert -1 <= row.cpu_time_ns <= row.duration_ns + tolerance(row)


# --- where others had a part in it, what the thread worked says nothing of the range


def test_not_where_another_thread_ends_it(capture: Capture, workers: list[Worker]) -> None:
    event_id = capture.begin()
    assert workers[0].call(source_calls.end, event_id) == -1
    assert [row.cpu_time_ns for row in capture.finish()] == [-1]


def test_not_where_it_is_asynchronous(capture: Capture) -> None:
    assert source_calls.end(capture.begin(flags=ASYNC)) == -1
    assert [row.cpu_time_ns for row in capture.finish()] == [-1]


def test_not_where_it_is_open_still(capture: Capture) -> None:
    capture.begin()
    assert [row.cpu_time_ns for row in capture.recorder.drain(open_ranges=True).events()] == [-1]
    assert [row.cpu_time_ns for row in capture.finish()] == [-1]


def test_not_where_another_task_ran(capture: Capture) -> None:
    async def with_others(name: str, awaits: bool) -> None:
        with record_function(name):
            if awaits:
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(with_others("awaits", True), with_others("works", False))

    asyncio.run(main())
    rows = by_name(capture.finish())
    assert (rows["awaits"].cpu_time_ns, rows["works"].cpu_time_ns >= 0) == (-1, True)


def test_not_where_another_greenlet_ran(capture: Capture) -> None:
    def switches() -> None:
        with record_function("switches"):
            other.switch()

    def works() -> None:
        with record_function("works"):
            pass
        first.switch()

    first = greenlet.greenlet(switches)
    other = greenlet.greenlet(works)
    first.switch()
    capture.end(capture.begin("later"))
    has_cpu_time = {row.name: row.cpu_time_ns >= 0 for row in capture.finish()}
    assert has_cpu_time == {"switches": False, "works": True, "later": True}


def test_not_where_a_generator_went_on_in_another_context(capture: Capture) -> None:
    def generate() -> Iterator[None]:
        with record_function("range"):
            yield

    iterator = generate()
    contextvars.copy_context().run(next, iterator)
    assert next(iterator, "over") == "over"
    assert [row.cpu_time_ns for row in capture.finish()] == [-1]


def run_in_a_context() -> None:
    contextvars.copy_context().run(work, WORK_NS)


def run_in_contexts_of_contexts() -> None:
    contextvars.copy_context().run(run_in_a_context)
    run_in_a_context()


def run_a_loop() -> None:
    async def others() -> None:
        await asyncio.gather(*[asyncio.to_thread(int) for _ in range(2)])
        work(WORK_NS)

    asyncio.run(others())


def set_a_variable() -> None:
    contextvars.ContextVar("variable", default=0).set(1)
    work(WORK_NS)


def attach_and_detach() -> None:
    token = context.attach(context.set_value("key", 1))
    work(WORK_NS)
    context.detach(token)


NESTED = [
    run_in_a_context,
    run_in_contexts_of_contexts,
    run_a_loop,
    set_a_variable,
    attach_and_detach,
]


@pytest.mark.parametrize("nested", NESTED)
def test_a_context_that_is_left_again_changes_nothing(
    capture: Capture, nested: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As other tests have left greenlets in this process.
    monkeypatch.delitem(sys.modules, "greenlet._greenlet")
    assert in_range(capture, nested).cpu_time_ns >= WORK_NS


def test_a_task_that_enters_a_context_may_have_been_suspended(capture: Capture) -> None:
    async def enters() -> None:
        with record_function("range"):
            run_in_a_context()

    asyncio.run(enters())
    assert [row.cpu_time_ns for row in capture.finish()] == [-1]


def test_earlier_recordings_have_no_part_in_it(recorder: Recorder) -> None:
    reset(recorder)
    earlier = Capture(recorder)
    event_id = earlier.begin()
    earlier.finish()
    later = Capture(recorder)
    source_calls.end(event_id)
    later.end(later.begin("later"))
    assert [(row.name, row.cpu_time_ns >= 0) for row in later.finish()] == [("later", True)]
