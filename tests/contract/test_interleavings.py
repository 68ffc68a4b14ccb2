"""Random interleavings of threads, drops, open ranges and drains, against a model of the
contract.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import source_calls
from helpers.example_counts import examples
from helpers.recording_helpers import (
    ASYNC,
    CROSSING,
    PARTIAL,
    Capture,
    Worker,
    check_laws,
    reset,
    tops,
    workers_of,
)
from otel_recfn import _native  # to disable a thread as callbacks/ do
from otel_recfn.model.batch import Event
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES


@dataclass(eq=False)
class Range:
    event_id: int
    owner: int
    parents: set[int]
    """What may come out as the parent."""
    roots: dict[int, int]
    """The root, by parent."""
    is_async: bool
    ended: bool = False
    partial: bool = False
    must_cross: bool = False
    may_cross: bool = False
    ended_by: int = -1


@dataclass
class Thread:
    stack: list[Range] = field(default_factory=list)
    """Open ranges of this recording, and ghosts."""
    enabled: bool = True

    def open_ranges(self) -> list[Range]:
        return [item for item in self.stack if not item.ended]


class Model:
    """Takes the same steps as the recorder; a begin also takes the id that the recorder gave."""

    def __init__(self, threads: int) -> None:
        self.threads = [Thread() for _ in range(threads)]
        self.ranges: dict[int, Range] = {}
        self.dropped = 0

    def open_ranges(self) -> list[Range]:
        return [item for item in self.ranges.values() if not item.ended]

    def begin(self, owner: int, event_id: int, is_async: bool) -> None:
        item = self._add(owner, event_id, is_async)
        if item is not None:
            self.threads[owner].stack.append(item)

    def mark(self, owner: int, event_id: int) -> None:
        item = self._add(owner, event_id, is_async=False)
        if item is not None:
            item.ended, item.ended_by = True, owner

    def _add(self, owner: int, event_id: int, is_async: bool) -> Range | None:
        thread = self.threads[owner]
        if event_id == 0:
            self.dropped += thread.enabled
            return None
        assert thread.enabled, "a thread that is switched off recorded"
        assert event_id not in self.ranges, "an id was given twice"
        roots = dict(self._enclosures(thread, event_id))
        self.ranges[event_id] = Range(event_id, owner, set(roots), roots, is_async)
        return self.ranges[event_id]

    @staticmethod
    def _enclosures(thread: Thread, event_id: int) -> list[tuple[int, int]]:
        """(parent, root), one for each root that the parent may have: the innermost open range
        that is not asynchronous.
        """
        for item in reversed(thread.open_ranges()):
            if not item.is_async:
                return [(item.event_id, root) for root in set(item.roots.values())]
        return [(0, event_id)]

    def end(self, ender: int, item: Range) -> None:
        if item.ended:
            return
        thread = self.threads[item.owner]
        item.ended, item.ended_by = True, ender
        if ender != item.owner:
            item.must_cross = True  # and it stays on the stack, a ghost
            return
        above = thread.stack[thread.stack.index(item) + 1 :]
        item.must_cross = any(not other.ended for other in above)
        item.may_cross = bool(above)
        thread.stack.remove(item)

    def close_open(self) -> None:
        for item in self.open_ranges():
            item.ended = item.partial = True
            item.ended_by = item.owner


class Driver:
    """Runs steps on a capture with real threads."""

    def __init__(self, capture: Capture, workers: list[Worker]) -> None:
        self.capture = capture
        self.workers = workers
        self.model = Model(len(workers))

    def begin(self, worker: int, is_async: bool = False) -> None:
        event_id = self.workers[worker].call(
            self.capture.begin, f"worker {worker}", int(ASYNC) if is_async else 0
        )
        self.model.begin(worker, event_id, is_async)

    def mark(self, worker: int) -> None:
        self.model.mark(worker, self.workers[worker].call(source_calls.mark, "mark"))

    def switch(self, worker: int) -> None:
        """On, or off."""
        thread = self.model.threads[worker]
        was_enabled = self.workers[worker].call(_native.set_thread_enabled, not thread.enabled)
        assert was_enabled == thread.enabled
        thread.enabled = not was_enabled

    def end_innermost(self, worker: int) -> None:
        open_ranges = self.model.threads[worker].open_ranges()
        if open_ranges:
            self._end(worker, open_ranges[-1])

    def end_any(self, worker: int, which: int) -> None:
        """Out of order, or on another thread, or once more."""
        known = list(self.model.ranges.values())
        if known:
            self._end(worker, known[which % len(known)])

    def end_open(self, worker: int, which: int) -> None:
        known = self.model.open_ranges()
        if known:
            self._end(worker, known[which % len(known)])

    def burst(self, worker: int, count: int) -> None:
        def run() -> list[int]:
            ids = []
            for _ in range(count):
                ids.append(self.capture.begin("burst"))
                self.capture.end(ids[-1])
            return ids

        for event_id in self.workers[worker].call(run):
            self.model.begin(worker, event_id, False)
            if event_id:
                self.model.end(worker, self.model.ranges[event_id])

    def drain(self) -> None:
        self.capture.take()

    def seal(self) -> None:
        self.capture.take(close_open=True)
        self.model.close_open()

    def restart(self) -> None:
        """A capture ends and the next begins."""
        self.capture.recorder.stop()
        self.seal()
        self.capture.recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)

    def _end(self, worker: int, item: Range) -> None:
        self.workers[worker].call(self.capture.end, item.event_id)
        self.model.end(worker, item)

    def check(self) -> None:
        """The final drain, and everything that came out against the model."""
        self.capture.recorder.stop()
        self.capture.take(close_open=True)
        self.model.close_open()
        rows = self.capture.rows()
        check_laws(rows, self.capture.opened())
        by_id = {row.event_id: row for row in rows}
        assert set(by_id) == set(self.model.ranges), "not every recorded range came out"
        for event_id, item in self.model.ranges.items():
            _check_row(by_id[event_id], item, by_id)
        counters = self.capture.counters()
        assert counters.dropped == self.model.dropped
        assert {item.event_id for item in self.capture.opened()} == set(tops(rows))


def _check_row(row: Event, item: Range, by_id: dict[int, Event]) -> None:
    assert row.parent in item.parents
    assert row.root == (by_id[row.parent].root if row.parent else row.event_id)
    assert bool(row.flags & PARTIAL) == item.partial
    assert bool(row.flags & ASYNC) == item.is_async
    if item.must_cross and not item.is_async:
        assert row.flags & CROSSING
    elif item.is_async or not item.may_cross:
        assert not row.flags & CROSSING
    if item.ended_by == item.owner:
        assert row.end_thread == row.thread
    else:
        assert row.end_thread.number != row.thread.number


WORKERS = 3
worker = st.integers(0, WORKERS - 1)
which = st.integers(0, 30)


# The recorder is one for all examples, as it is one in a process; ``reset`` and fresh threads make
# each example new.
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
@given(
    steps=st.lists(
        st.one_of(begin, begin_sync, end_innermost, end_open, end_any, drain, seal, restart),
        max_size=60,
    )
)
def test_ranges_that_are_sealed_while_recording(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@many_examples
@given(
    steps=st.lists(
        st.one_of(
            begin_sync, begin_sync, mark, switch, end_innermost, end_open, drain, seal, restart
        ),
        max_size=60,
    )
)
def test_marks_and_threads_that_are_switched_off(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps)


@pytest.mark.one_python
@many_examples
@given(
    steps=st.lists(
        st.one_of(burst, burst, begin_sync, mark, end_innermost, end_open, drain), max_size=40
    )
)
def test_buffers_that_overflow(recorder: Recorder, steps: list[tuple]) -> None:
    drive(recorder, steps, buffer_bytes=4096)
