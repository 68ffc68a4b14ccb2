"""The tracer of Python calls: what becomes a range, and that calls nest whatever a program does."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.calling_program import (
    FORMS,
    WITH_CALLS,
    Action,
    Node,
    Stop,
    Traced,
    by_end,
    call,
    short,
    tree,
    with_line,
)
from helpers.example_counts import examples
from helpers.recording_helpers import LIMITS, check_laws
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import record_function
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink


@pytest.fixture
def traced(recorder: Recorder, no_garbage_collection: None) -> Iterator[Traced]:
    made = Traced(recorder)
    yield made
    made.close()
    assert sys.getprofile() is None
    assert threading.getprofile() is None
    assert not hasattr(sys, "monitoring") or not {
        sys.monitoring.get_tool(tool) for tool in (3, 4)
    } - {None}


def leaf() -> int:
    return len("leaf")


def test_calls_of_python_and_c_functions_become_ranges(traced: Traced) -> None:
    def program() -> None:
        leaf()

    rows = traced.run(program)
    assert tree(rows, "program") == [
        Node("program", (Node("leaf", (Node("<built-in function len>"),)),))
    ]
    [row] = [row for row in rows if short(row) == "leaf"]
    assert row.name.endswith(f"test_python_calls.py({leaf.__code__.co_firstlineno}): leaf")
    assert row.source == EventSource.PYTHON_CALL
    check_laws(by_end(rows))


def test_what_was_on_the_stack_is_there_from_the_beginning(traced: Traced) -> None:
    rows = traced.run(leaf)
    [enclosing] = [
        row
        for row in rows
        if short(row) == "test_what_was_on_the_stack_is_there_from_the_beginning"
    ]
    [inside] = [row for row in rows if short(row) == "leaf"]
    assert enclosing.start_ns <= inside.start_ns
    assert enclosing.flags & EventFlag.PARTIAL
    by_id = {row.event_id: row for row in rows}
    assert (
        short(by_id[by_id[inside.parent].parent])
        == "test_what_was_on_the_stack_is_there_from_the_beginning"
    )


@pytest.fixture(
    params=[5000, LIMITS["MAX_DEPTH"] + 1000] if sys.version_info >= (3, 11) else [5000]
)
def deep_recursion(request: pytest.FixtureRequest) -> Iterator[int]:
    limit = sys.getrecursionlimit()
    most = request.param
    sys.setrecursionlimit(most)
    yield most
    sys.setrecursionlimit(limit)


def test_recursion_to_a_high_limit_ends_or_counts_every_call(
    traced: Traced, recorder: Recorder, deep_recursion: int
) -> None:
    called, before = 0, recorder.counters().dropped

    def endless() -> None:
        nonlocal called
        called += 1
        endless()

    def program() -> None:
        with pytest.raises(RecursionError):
            endless()
        leaf()

    rows = traced.run(program)
    calls = [row for row in rows if short(row) == "endless"]
    assert called > deep_recursion - 500
    assert len(calls) + recorder.counters().dropped - before == called
    assert not [row for row in calls if row.flags & EventFlag.PARTIAL]
    [after] = [row for row in rows if short(row) == "leaf"]
    by_id = {row.event_id: row for row in rows}
    assert short(by_id[after.parent]) == "program"
    check_laws(by_end(rows))


def test_threads_that_start_and_end_while_it_traces(traced: Traced) -> None:
    def in_thread() -> None:
        leaf()

    def program() -> None:
        threads = [threading.Thread(target=in_thread) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    rows = traced.run(program)
    assert (
        tree(rows, "in_thread")
        == [Node("in_thread", (Node("leaf", (Node("<built-in function len>"),)),))] * 5
    )
    assert len({row.thread.number for row in rows if short(row) == "in_thread"}) == 5
    check_laws(by_end(rows))


def test_coroutines_run_in_what_runs_them(traced: Traced) -> None:
    async def child() -> None:
        await asyncio.sleep(0)
        leaf()

    async def parent() -> None:
        await asyncio.gather(child(), child())

    def program() -> None:
        asyncio.run(parent())

    rows = traced.run(program)
    to_sleep = Node("sleep", (Node("__sleep0"),))
    in_sleep = Node("sleep", (Node("__sleep0"),))
    leaf_node = Node("leaf", (Node("<built-in function len>"),))
    assert [node.below for node in tree(rows, "child")] == [(to_sleep,)] * 2 + [
        (in_sleep, leaf_node)
    ] * 2
    by_id = {row.event_id: short(row) for row in rows}
    enclosing = {by_id[row.parent] for row in rows if short(row) == "child"}
    assert enclosing == {"<built-in method run of _contextvars.Context object>"}
    check_laws(by_end(rows))


def test_greenlets_that_switch_stacks(traced: Traced) -> None:
    greenlet = pytest.importorskip("greenlet").greenlet

    def ping() -> None:
        for _ in range(3):
            leaf()
            second.switch()

    def pong() -> None:
        while True:
            leaf()
            with record_function("range"):
                first.switch()

    def program() -> None:
        first.switch()

    def again() -> None:
        leaf()

    first = greenlet(ping)
    second = greenlet(pong)
    rows = traced.run(lambda: (program(), again()))
    names = [short(row) for row in rows]
    by_id = {row.event_id: row for row in rows}
    assert (names.count("leaf"), names.count("ping"), names.count("pong")) == (7, 1, 1)
    assert {short(by_id[row.parent]) for row in rows if short(row) == "range"} == {"pong"}
    assert len(tree(rows, "again")) == 1
    assert (
        len([row for row in rows if "switch of" in row.name and row.flags & EventFlag.PARTIAL]) == 1
    )
    check_laws(by_end(rows))


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="no sys.monitoring here")
def test_without_a_place_for_a_tool_calls_are_not_traced_and_that_is_told(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    taken = [tool for tool in (3, 4) if not sys.monitoring.get_tool(tool)]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "another's")
    try:
        assert "leaf" not in map(short, traced.run(leaf))
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    assert caplog.text.count("other tools have taken") == 1
    assert len(tree(traced.run(leaf), "leaf")) == 1
    assert [sys.monitoring.get_tool(tool) for tool in taken] == [None] * len(taken)


actions: st.SearchStrategy[Action] = st.recursive(
    st.tuples(st.sampled_from(sorted(FORMS)), st.just([])),
    lambda inner: st.tuples(st.sampled_from(sorted(FORMS)), st.lists(inner, max_size=3)),
    max_leaves=12,
)


@examples(60)
@given(action=actions)
def test_calls_nest_as_an_independent_profile_function_sees_them(
    traced: Traced, action: Action
) -> None:
    def program() -> None:
        call(action)

    seen = tree(traced.run(program), "program", with_line)
    assert seen == [_as_another_sees_it(program)]


def _as_another_sees_it(program: Callable[[], None]) -> Node:
    """From enters and exits as times only, as a plain profile function notes them: each exit is
    that of the innermost enter.
    """
    noted: list[str | None] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            noted.append(f"{frame.f_lineno} {frame.f_code.co_name}")
        elif event == "c_call":
            noted.append(_c_name(argument))
        else:
            noted.append(None)

    sys.setprofile(note)
    try:
        program()
    except Stop:
        pass
    finally:
        sys.setprofile(None)
    open_calls: list[tuple[str, list[Node]]] = [("", [])]
    for name in noted:
        if name is not None:
            open_calls.append((name, []))
        elif len(open_calls) > 1:
            ended, below = open_calls.pop()
            open_calls[-1][1].append(Node(ended, tuple(below)))
    return next(node for node in open_calls[0][1] if node.name.endswith(" program"))


def _c_name(function: Any) -> str:
    return re.sub(r" at 0x[0-9A-Fa-f]+>$", ">", repr(function))


def count_down(number: int) -> None:
    if number:
        count_down(number - 1)


class CountsCalls(InMemorySink):
    """Blocks in its first write, if it is to."""

    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self.counted = 0
        self.written = threading.Event()
        self.may_go_on = threading.Event()
        if not blocks:
            self.may_go_on.set()

    def write(self, batch: Batch) -> None:
        wanted = [index for index, name in enumerate(batch.names) if name.endswith(": count_down")]
        self.counted += int(sum((batch.name == index).sum() for index in wanted))
        self.written.set()
        self.may_go_on.wait(PATIENCE_S)


@pytest.fixture
def counting(
    recorder: Recorder, request: pytest.FixtureRequest
) -> Iterator[tuple[Session, CountsCalls, Capture]]:
    """A capture of Python calls with small buffers."""
    session = Session(recorder)
    sink = CountsCalls(request.param)
    capture = Capture(WITH_CALLS, [sink], buffer_bytes=1 << 16)
    session.start(capture)
    yield session, sink, capture
    sink.may_go_on.set()
    session.stop(capture, PATIENCE_S)


def call_in_threads(threads: int) -> int:
    """How often ``count_down`` is called, in threads that haven't recorded before."""

    def program() -> None:
        for _ in range(2000):
            count_down(9)

    started = [threading.Thread(target=program) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return threads * 2000 * 10


@pytest.mark.parametrize("counting", [False], indirect=True)
def test_calls_that_come_faster_than_they_are_read_wait_for_it(
    counting: tuple[Session, CountsCalls, Capture],
) -> None:
    session, sink, capture = counting
    called = call_in_threads(4)
    session.stop(capture, PATIENCE_S)
    assert "dropped.buffer_full" not in session.lost(capture)
    assert sink.counted == called


@pytest.mark.parametrize("counting", [True], indirect=True)
def test_calls_go_on_where_nobody_reads_them(
    counting: tuple[Session, CountsCalls, Capture],
) -> None:
    session, sink, capture = counting
    count_down(9)
    assert sink.written.wait(PATIENCE_S)
    call_in_threads(1)
    assert session.lost(capture)["dropped.buffer_full"] > 0


def test_a_call_that_waits_to_be_read_while_tracing_ends_is_not_left_open(
    recorder: Recorder,
) -> None:
    """As another capture goes on, whose ranges in this thread would lie in it."""
    session = Session(recorder)
    sink = CountsCalls(blocks=True)
    is_partial = Capture(Selected(), [], buffer_bytes=1 << 16)
    ends = Capture(WITH_CALLS, [sink], buffer_bytes=1 << 16)
    session.start(is_partial)
    session.start(ends)
    assert sink.written.wait(PATIENCE_S)
    stop = threading.Event()
    may_end = threading.Event()
    rounds = [0, -1]

    def program() -> None:
        while not stop.is_set():
            count_down(9)
            rounds[0] += 1
        may_end.wait(PATIENCE_S)

    def waits() -> bool:
        rounds[1], before = rounds[0], rounds[1]
        return rounds[1] == before > 0

    thread = threading.Thread(target=program)
    thread.start()
    wait_until(waits)
    session.stop(ends, 0.0)
    stop.set()
    sink.may_go_on.set()
    session.flush(is_partial, PATIENCE_S)
    batch = recorder.drain(open_ranges=True)
    may_end.set()
    thread.join()
    session.stop(is_partial, PATIENCE_S)
    assert len(batch) == batch.closed
