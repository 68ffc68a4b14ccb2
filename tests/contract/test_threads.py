"""Threads at once, and threads that end; what rows say of their thread."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import otel_recfn
from helpers import source_calls
from helpers.recording_helpers import (
    LIMITS,
    SOURCE,
    USER,
    Capture,
    Worker,
    check_laws,
    events,
    run_threads,
)
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.events import ALL_SCOPES_MASK, ORDINAL_BITS, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, RecorderCounters


def nest(capture: Capture, rounds: int, begun: list[int]) -> None:
    """Many small trees."""
    for _ in range(rounds):
        ids = [capture.begin(name) for name in ("outer", "middle", "inner")]
        capture.end(ids[2])
        ids.append(capture.begin("second"))
        capture.end(ids[3])
        capture.end(ids[1])
        capture.end(ids[0])
        begun.extend(ids)


@pytest.mark.parametrize("buffer_bytes", [8 << 20, 8192], ids=["all fits", "much is dropped"])
def test_eight_threads_hammer_while_another_drains(recorder: Recorder, buffer_bytes: int) -> None:
    capture = Capture(recorder, buffer_bytes)
    done = threading.Event()
    begun: list[list[int]] = [[] for _ in range(8)]

    def drain() -> None:
        while not done.is_set():
            capture.drain()

    drainer = threading.Thread(target=drain)
    drainer.start()
    run_threads([lambda ids=ids: nest(capture, 300, ids) for ids in begun])
    done.set()
    drainer.join(PATIENCE_S)
    capture.finish()
    rows = capture.rows()
    attempts = [event_id for ids in begun for event_id in ids]
    assert {row.event_id for row in rows} == {event_id for event_id in attempts if event_id}
    assert not any(row.flags for row in rows)
    check_laws(rows, capture.opened())
    counters = capture.counters()
    assert counters == RecorderCounters(dropped=attempts.count(0))
    if 0 not in attempts:
        names = {row.event_id: row.name for row in rows} | {0: ""}
        expected = {"outer": "", "middle": "outer", "inner": "middle", "second": "middle"}
        assert all(names[row.parent] == expected[row.name] for row in rows)


def test_ranges_travel_between_threads_while_another_drains(recorder: Recorder) -> None:
    """Each thread begins ranges and hands them to the next one, which ends them."""
    capture = Capture(recorder)
    done = threading.Event()
    count = 4
    mailboxes: list[list[int]] = [[] for _ in range(count)]
    begun: list[int] = []

    def work(own: list[int], following: list[int]) -> None:
        for _ in range(300):
            ids = [capture.begin("travels"), capture.begin("stays")]
            begun.extend(ids)
            following.append(ids[0])
            capture.end(ids[1])
            while own:
                capture.end(own.pop())

    def drain() -> None:
        while not done.is_set():
            capture.drain()

    drainer = threading.Thread(target=drain)
    drainer.start()
    run_threads(
        [lambda at=at: work(mailboxes[at], mailboxes[(at + 1) % count]) for at in range(count)]
    )
    done.set()
    drainer.join(PATIENCE_S)
    capture.finish()
    rows = capture.rows()
    assert {row.event_id for row in rows} == {event_id for event_id in begun if event_id}
    check_laws(rows, capture.opened())
    assert capture.counters().dropped == begun.count(0)


def test_threads_keep_their_names_after_their_end(capture: Capture) -> None:
    thread = threading.Thread(target=lambda: capture.end(capture.begin()), name="loader 7")
    thread.start()
    thread.join(PATIENCE_S)
    [row] = capture.finish()
    assert row.thread.name == "loader 7"


def test_a_later_thread_with_the_same_ident_does_not_give_its_name(capture: Capture) -> None:
    """glibc gives the memory of a thread that ended to the next one, whose ident is its address."""
    done = threading.Event()

    def find_thread(ident: int) -> threading.Thread | None:
        later = threading.Thread(target=done.wait, args=(PATIENCE_S,), name="later")
        later.start()
        return later if later.ident == ident else None

    first = threading.Thread(target=lambda: capture.end(capture.begin()), name="first")
    first.start()
    first.join(PATIENCE_S)
    assert first.ident is not None
    found = any(find_thread(first.ident) for _ in range(20))
    [row] = capture.drain()
    done.set()
    if not found:
        pytest.skip("no thread got the ident of the first one")
    assert row.thread.name == "first"


def test_a_range_outlives_its_thread(capture: Capture) -> None:
    begun: list[int] = []
    run_threads([lambda: begun.append(capture.begin("orphan"))])
    assert capture.drain() == []
    assert capture.drain() == []
    capture.end(begun[0])
    [row] = capture.finish()
    assert (row.event_id, row.flags & 16) == (begun[0], 0)


def test_thread_numbers_are_never_used_again(capture: Capture) -> None:
    numbers = []
    for _ in range(20):
        run_threads([lambda: numbers.append(capture.begin() >> ORDINAL_BITS)])
        capture.drain(close_open=True)
    assert len(set(numbers)) == 20
    assert numbers == sorted(numbers)


def test_threads_that_ended_are_freed(capture: Capture) -> None:
    """Thousands of short threads: the counters stay whole though their states are gone."""
    for index in range(2000):
        run_threads([lambda: capture.end(capture.begin())])
        if index % 50 == 0:
            capture.drain()
    capture.finish()
    assert len(capture.rows()) == 2000
    assert capture.counters() == RecorderCounters()
    assert len(capture.recorder.drain().tracks) < 100


def test_a_thread_has_one_logical_id(capture: Capture, workers: list[Worker]) -> None:
    ids = [
        source_calls.current_thread_id(),
        *(worker.call(source_calls.current_thread_id) for worker in workers),
    ]
    assert len(set(ids)) == len(ids)
    assert source_calls.current_thread_id() == ids[0]
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.thread_id == ids[0]


def test_stacks_are_recorded_where_they_are_asked_for(recorder: Recorder) -> None:
    record_function = otel_recfn.record_function

    def innermost() -> int:
        with record_function("with stack"):
            return sys._getframe().f_lineno - 1

    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    line = innermost()
    source_calls.end(source_calls.begin("begun", USER, SOURCE))
    source_calls.end(source_calls.begin("backward", RecordScope.BACKWARD_FUNCTION, SOURCE))
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    innermost()
    recorder.stop()
    with_stack, begun, backward, without = events(recorder.drain(close_open=True))
    assert with_stack.stack.splitlines()[0] == f"{__file__}({line}): innermost"
    assert with_stack.stack.splitlines()[1].endswith(
        "test_stacks_are_recorded_where_they_are_asked_for"
    )
    assert begun.stack.splitlines()[0].endswith("test_stacks_are_recorded_where_they_are_asked_for")
    assert (backward.stack, without.stack) == ("", "")


def stack_below(recorder: Recorder, levels: int, file: str) -> list[str]:
    """The stack of a range that so many frames of that file enclose, of which each calls the
    next.
    """
    begun: list[int] = []
    program = (
        "def deeper(levels):\n    deeper(levels - 1) if levels > 1 else begun.append(begin('deep',"
        " 7, 1))\n"
    )
    namespace: dict[str, Any] = {"begin": source_calls.begin, "begun": begun}
    exec(compile(program, file, "exec"), namespace)
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    namespace["deeper"](levels)
    source_calls.end(begun[0])
    recorder.stop()
    [row] = events(recorder.drain(close_open=True))
    assert len(row.stack.encode()) < LIMITS["MAX_STACK_BYTES"]
    return row.stack.splitlines()


def test_what_does_not_fit_of_a_stack_is_the_outermost(recorder: Recorder) -> None:
    """Not the long lines: a stack with holes would show calls that weren't made."""
    file = "x" * 1000 + ".py"
    line = f"{file}(2): deeper"
    assert stack_below(recorder, 300, file) == [line] * (
        LIMITS["MAX_STACK_BYTES"] // (len(line) + 1)
    )
