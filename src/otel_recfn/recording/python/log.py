"""The writing side of the Python twin: what begin and end leave in their own thread.

    owner thread           ──append──►  records        ──popleft──►  drain
    other threads, drain   ──append──►  ended_elsewhere ──popleft──►  owner thread

Each queue has one consumer, and everything else in a log is touched by its owner thread alone. That is why nothing here
locks. What is relied on is that append, popleft and len of a deque are indivisible.

A record is a plain tuple, because making one is the price of a range:

    (ticks, log of the acting thread, event id, what, failure)

where ``what`` is a tuple in the order of BeginFields for a begin (also of a mark or a memory report, which end at once), and
the EventFlag bits of an end.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from otel_recfn.model.events import EventKind
from otel_recfn.recording.limits import MAX_DEPTH, MAX_DEPTH_FOR_ASYNC
from otel_recfn.recording.protocol import ContextReading

if TYPE_CHECKING:
    from otel_recfn.recording.python.task import Recording, TaskEntry

BYTES_PER_RANGE = 48
MOST_BEFORE_STACKTRACES = 2048
"""Where more records wait for the drain, stack traces are left out, which would take far more memory than the ranges."""


class BeginFields(NamedTuple):
    """What a begin record says."""

    name: str
    scope: int
    source: int
    module: str
    flags: int
    parent: int
    root: int
    context: ContextReading | None
    profiler: int
    details: Details | None
    node_id: int
    recording: Recording


class Details(NamedTuple):
    """What few begins have, by the names of the columns (``model/columns.py``)."""

    kind: int = int(EventKind.RANGE)
    sequence_nr: int = -1
    forward_thread_id: int = 0
    handle: int = 0
    debug_handle: int = -1
    shapes: str = ""
    dtypes: str = ""
    stack: str = ""
    nbytes: int = 0
    device: str = ""
    step_number: int = -1
    code: str = ""
    concrete_inputs: str = ""
    words: str = ""


class Failure(NamedTuple):
    """What a range was left by."""

    error: str = ""
    stacktrace: str = ""


NO_DETAILS, NO_FAILURE = Details(), Failure()
Begin: TypeAlias = "tuple[str, int, int, str, int, int, int, ContextReading | None, int, Details | None, int, Recording]"
Record: TypeAlias = "tuple[int, ThreadLog, int, Begin | int, Failure]"
REPLAYED: Any = (0, None, 0, 0, NO_FAILURE)
"""The end of no range."""


class Alive:
    """Is in a thread's ``threading.local``, so that it is destroyed with the thread, also one that Python didn't start."""

    __slots__ = ("__weakref__",)


class ThreadLog:
    """One thread's records, its open ranges, and its counters.

    Args:
        number: the recorder's number of the thread.
        capacity: ranges that fit between two drains.
        alive: is destroyed with the thread.
    """

    def __init__(self, number: int, capacity: int, alive: Alive) -> None:
        self.number, self._alive = number, weakref.ref(alive)
        self.ident, self.native_id, self.name = threading.get_ident(), threading.get_native_id(), ""
        self.records: deque[Record] = deque()
        self.set_capacity(capacity)
        self.open: set[int] = set()
        """Event ids of open ranges: a set, because taking one out of it needs no memory."""
        # Bounded, because nothing keeps a host from ending one range a million times on other threads.
        self.ended_elsewhere: deque[int] = deque(maxlen=2 * MAX_DEPTH)
        self.calls: list[TaskEntry] = []
        """Calls of Python code that are open, the innermost last; those that ended are taken away when they are the last."""
        self.enabled = True
        self.profiler = 0
        self.recorded = self.dropped = self.lost_ends = self.unsampled = 0
        self.taken_back = 0
        """How many of the ``recorded`` were undone, because their begin was interrupted."""

    def set_capacity(self, capacity: int) -> None:
        """Set how many ranges fit between two drains."""
        self._slots = 2 * capacity

    @property
    def capacity(self) -> int:
        """How many do."""
        return self._slots // 2

    @property
    def thread_is_alive(self) -> bool:
        """Whether more records may come."""
        return self._alive() is not None

    def has_room(self) -> bool:
        """Whether one more range fits. Every open range keeps a slot for its end, so that no end is ever lost."""
        if self.ended_elsewhere:
            self._forget_ended_elsewhere()
        return len(self.records) + len(self.open) + 2 <= self._slots

    def has_depth(self, is_async: bool) -> bool:
        """Whether one more range may be open."""
        return len(self.open) < (MAX_DEPTH_FOR_ASYNC if is_async else MAX_DEPTH)

    def end(self, ticks: int, event_id: int, flags: int, failure: Failure) -> None:
        """End the range, whatever began after it. Nothing when it is not open here any more."""
        if self.ended_elsewhere:
            self._forget_ended_elsewhere()
        if event_id in self.open:
            if failure.stacktrace and len(self.records) > MOST_BEFORE_STACKTRACES:
                failure = failure._replace(stacktrace="")
            self.records.append((ticks, self, event_id, flags, failure))
            self.open.discard(event_id)

    def innermost_call(self, recording: Recording) -> TaskEntry | None:
        """The innermost open call of Python code of that recording; None where there is none."""
        calls = self.calls
        while calls and (calls[-1].ended or calls[-1].recording is not recording):
            calls.pop()
        return calls[-1] if calls else None

    def has_just_begun(self, event_id: int) -> bool:
        """Whether the newest record is that range's begin."""
        return bool(self.records) and self.records[-1][2] == event_id

    def take_back(self, ticks: int, event_id: int) -> None:
        """Undo a begin in which something was raised; where it was recorded already, end the range."""
        self.open.discard(event_id)
        if self.has_just_begun(event_id):
            self.records.append((ticks, self, event_id, 0, NO_FAILURE))
        else:
            self.taken_back += 1

    def _forget_ended_elsewhere(self) -> None:
        while self.ended_elsewhere:
            self.open.discard(self.ended_elsewhere.popleft())


class TakenRecords:
    """Records between the logs and their replay. Whatever is raised meanwhile, none is lost; one may be replayed twice."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._next_is_last = False

    @property
    def size(self) -> int:
        """How many wait for their replay."""
        return len(self._records)

    def begun(self) -> list[tuple[ThreadLog, int]]:
        """Thread and event id of the records that begin something."""
        return [(log, event_id) for _, log, event_id, what, _ in self._records if not isinstance(what, int)]

    def take(self, queue: deque[Record], count: int, until: int) -> None:
        """Take the first ``count`` records of a queue, up to the first one with more ticks than ``until``."""
        self._order_as_taken()
        for _ in range(min(count, len(queue))):
            if queue[0][0] > until:
                return
            self._records.append(queue[0])
            queue.popleft()

    def replay(self, each: Callable[[Record], None]) -> None:
        """Call ``each`` with every record, by ticks, and in a thread in the order in which they were made.

        A record at which ``each`` raised is the first one next time.
        """
        records = self._records
        self._order_as_taken()
        records.sort(key=itemgetter(0))
        records.reverse()
        self._next_is_last = True
        while records:
            each(records[-1])
            records[-1] = REPLAYED  # taking it away may need memory
            records.pop()

    def _order_as_taken(self) -> None:
        if self._next_is_last:
            self._records.reverse()
            self._next_is_last = False
