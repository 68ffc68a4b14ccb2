"""What the contract tests are written in: a capture, threads that take orders, and the laws that
every drain obeys.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from helpers import source_calls
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.batch import Batch, Event, Opened
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    OVERLAPPING,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
    make_event_id,
)
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, ContextReading, RecorderCounters

T = TypeVar("T")

USER = int(RecordScope.USER_SCOPE)
SOURCE = int(EventSource.RECORD_FUNCTION)
ASYNC, CROSSING, ERROR, PARTIAL = (
    EventFlag.ASYNC,
    EventFlag.CROSSING,
    EventFlag.ERROR,
    EventFlag.PARTIAL,
)

FIRST_HANDLE = 1 << 39
FIRST_EVENT_ID = make_event_id(1, 1)

KIB = 1024
LIMITS = {
    "MAX_NAME_BYTES": 2 * KIB,
    "MAX_ERROR_BYTES": KIB,
    "MAX_REMOTE_ERROR_BYTES": 208,
    "MAX_STACKTRACE_BYTES": 8 * KIB,
    "MAX_STACK_BYTES": 16 * KIB,
    "MAX_ATTRIBUTES_BYTES": 16 * KIB,
    "MAX_DEPTH": 16 * KIB,
    "MAX_DEPTH_FOR_ASYNC": 768,
    "MAX_REMOTE_ENDS": 4 * KIB,
}
"""What is kept of what the program says (``native/core/record.hpp``)."""


def reset(recorder: Recorder) -> None:
    """As new, but for counters and thread numbers."""
    recorder.stop()
    recorder.set_context_reader(None)
    recorder.drain(close_open=True)


def run_threads(functions: list[Callable[[], None]]) -> None:
    """All at once, until each is done."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def difference(now: RecorderCounters, before: RecorderCounters) -> RecorderCounters:
    return RecorderCounters(*(a - b for a, b in zip(now, before, strict=True)))


class Capture:
    """A recording from here on, and what came out of it."""

    def __init__(self, recorder: Recorder, buffer_bytes: int = DEFAULT_BUFFER_BYTES) -> None:
        self.recorder = recorder
        self._before = recorder.counters()
        self.batches: list[Batch] = []
        self._rows: tuple[int, list[Event]] = (0, [])
        recorder.start(ALL_SCOPES_MASK, buffer_bytes)

    def begin(self, name: str = "range", flags: int = 0, module: str = "") -> int:
        return source_calls.begin(name, USER, SOURCE, module, flags)

    def end(self, event_id: int, error: str = "") -> None:
        source_calls.end(event_id, error)

    def drain(self, *, close_open: bool = False) -> list[Event]:
        """The rows of one drain."""
        return list(self.take(close_open=close_open).events())

    def take(self, *, close_open: bool = False) -> Batch:
        """The same as a batch."""
        self.batches.append(self.recorder.drain(close_open=close_open))
        return self.batches[-1]

    def finish(self) -> list[Event]:
        """The rows of the final drain."""
        self.recorder.stop()
        return self.drain(close_open=True)

    def rows(self) -> list[Event]:
        """Everything that was drained, in order, as it is by now."""
        if self._rows[0] != len(self.batches):
            self._rows = (
                len(self.batches),
                [event for batch in self.batches for event in batch.events()],
            )
        return list(self._rows[1])

    def opened(self) -> list[Opened]:
        return [opened for batch in self.batches for opened in batch.opened]

    def counters(self) -> RecorderCounters:
        """Since this capture began."""
        return difference(self.recorder.counters(), self._before)


class Worker:
    """A thread that runs what it is given, one call at a time: the caller decides the
    interleaving.

    It is in ``context`` all the while, as one that asyncio.to_thread uses.
    """

    _numbers = itertools.count(1)

    def __init__(self, context: contextvars.Context | None = None) -> None:
        self._orders: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=(context or contextvars.Context()).run,
            args=(self._obey,),
            name=f"worker-{next(self._numbers)}",
            daemon=True,
        )
        self.thread.start()

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.begin_call(function, *args, **kwargs)()

    def begin_call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Callable[[], T]:
        """What waits for the call's end, and gives what it returned."""
        self._orders.put(lambda: function(*args, **kwargs))
        return self._answer

    def _answer(self) -> Any:
        result, error = self._answers.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        self._orders.put(None)
        self.thread.join(PATIENCE_S)

    def _obey(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._answers.put((order(), None))
            except BaseException as error:  # raised again in the caller
                self._answers.put((None, error))


@contextmanager
def workers_of(count: int) -> Iterator[list[Worker]]:
    workers = [Worker() for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


class Clock:
    """The time by which it is decided when to look at open ranges, which tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Reader:
    """A context reader that says what a test wants."""

    def __init__(self, reading: ContextReading | None = None) -> None:
        self.reading = reading
        self.threads: list[int] = []

    def __call__(self) -> ContextReading | None:
        self.threads.append(threading.get_ident())
        return self.reading


def by_name(rows: Iterable[Event]) -> dict[str, Event]:
    found: dict[str, Event] = {}
    for row in rows:
        assert row.name not in found, f"{row.name} came out twice"
        found[row.name] = row
    return found


def parents(rows: list[Event]) -> dict[str, str]:
    """Name of the parent by name; empty at top level."""
    names = {row.event_id: row.name for row in rows} | {0: ""}
    return {row.name: names[row.parent] for row in by_name(rows).values()}


def check_laws(rows: list[Event], opened: list[Opened] | None = None) -> None:
    """What holds for all rows of a capture, whatever happened."""
    position = {row.event_id: index for index, row in enumerate(rows)}
    assert len(position) == len(rows), "a range came out twice"
    by_id = {row.event_id: row for row in rows}
    for row in rows:
        assert row.start_ns <= row.end_ns
        assert (
            row.handle == row.event_id
            or FIRST_HANDLE <= row.handle < FIRST_EVENT_ID
            or row.handle >= 1 << 52
        )
        assert row.handle < 1 << 53, "a double holds it"
        parent = by_id.get(row.parent)
        if parent is not None:
            assert row.root == row.event_id or (row.root, row.context) == (
                parent.root,
                parent.context,
            )
        if (
            parent is not None
            and row.thread == parent.thread
            and not (row.flags | parent.flags) & OVERLAPPING
        ):
            assert parent.start_ns <= row.start_ns
            assert row.end_ns <= parent.end_ns
            assert position[row.event_id] < position[parent.event_id], (
                "a parent came out before its child"
            )
        if row.parent == 0:
            assert row.root == row.event_id
    _check_slices(rows)
    _check_places(rows)
    if opened is not None:
        _check_opened(rows, opened)


def _check_slices(rows: list[Event]) -> None:
    """Synchronous ranges of one thread lie in each other or apart: a timeline can draw them as
    slices.
    """
    ends: dict[int, list[Event]] = {}
    for row in sorted(rows, key=lambda row: (row.start_ns, -row.end_ns)):
        if row.flags & OVERLAPPING:
            continue
        around = ends.setdefault(row.thread.number, [])
        while around and around[-1].end_ns <= row.start_ns:
            around.pop()
        assert not around or row.end_ns <= around[-1].end_ns, (
            f"{row.name} and {around[-1].name} overlap"
        )
        around.append(row)


def _check_places(rows: list[Event]) -> None:
    """A row says whether its times show what it lies in: what began last in its thread of what
    was open as it began.
    """
    by_id = {row.event_id: row for row in rows}
    begun: dict[int, list[Event]] = {}
    for row in sorted(rows, key=lambda row: row.event_id):
        thread_rows = begun.setdefault(row.thread.number, [])
        open_ids = [each.event_id for each in thread_rows if each.end_ns > row.start_ns]
        if row.parent == 0 or row.parent in by_id:
            is_elsewhere = row.parent != (open_ids[-1] if open_ids else 0)
            assert bool(row.flags & EventFlag.PARENT_ELSEWHERE) == is_elsewhere, row.name
        if row.kind == RowKind.RANGE and not row.flags & ASYNC:
            thread_rows.append(row)


def tops(rows: Iterable[Event]) -> dict[int, Event]:
    """The ranges that lie in no other one of their span, which a drain announces."""
    return {
        row.event_id: row for row in rows if row.root == row.event_id and row.kind == RowKind.RANGE
    }


def _check_opened(rows: list[Event], opened: list[Opened]) -> None:
    opened_columns = {item.event_id: item for item in opened}
    assert len(opened_columns) == len(opened), "a range was announced twice"
    assert set(opened_columns) >= set(tops(rows))
    for event_id, row in tops(rows).items():
        assert (opened_columns[event_id].name, opened_columns[event_id].start_ns) == (
            row.name,
            row.start_ns,
        )
        assert opened_columns[event_id].source == row.source


def events(batch: Batch) -> list[Event]:
    return list(batch.events())
