"""The draining side of the Python twin: replays begins and ends, and says which range crosses others.

Only drains touch it, one at a time. A begin says itself what it lies in. A range that ends while it isn't on top of its
thread's open ranges, or on another thread, crosses what is open there.

A thread's open ranges are linked, ``innermost`` and from there by ``outer``, because taking one out then needs no memory, as it
does with a list: a range whose row was built is certainly no longer open.
"""

from __future__ import annotations

from dataclasses import replace

from otel_recfn.model.clock import ClockMapping, Ticks, TreeOffsets
from otel_recfn.model.events import EventFlag, EventKind, EventSource
from otel_recfn.recording.python.batch import BatchBuilder, PythonRange
from otel_recfn.recording.python.log import NO_DETAILS, NO_FAILURE, BeginFields, Failure, Record, ThreadLog

ASYNC, ERROR, PARTIAL = int(EventFlag.ASYNC), int(EventFlag.ERROR), int(EventFlag.PARTIAL)
CROSSING = int(EventFlag.CROSSING)
CLOCK_JUMPED = int(EventFlag.CLOCK_JUMPED)
PYTHON_CALL = int(EventSource.PYTHON_CALL)


class ThreadReplay:
    """The state of a thread as of the records that were replayed."""

    def __init__(self) -> None:
        self.innermost: PythonRange | None = None
        self.offsets = TreeOffsets()
        self._last_ns = 0

    def at(self, ns: int) -> int:
        """``ns``, but never earlier than the thread's last event, so that what nests in ticks nests in nanoseconds too."""
        self._last_ns = max(self._last_ns, ns)
        return self._last_ns

    def open_ranges(self) -> list[PythonRange]:
        """The innermost first."""
        found, item = [], self.innermost
        while item is not None:
            found.append(item)
            item = item.outer
        return found

    def innermost_call(self) -> int:
        """Event id of the innermost Python call that is open, whatever lies between; 0 where there is none."""
        item = self.innermost
        while item is not None and item.source != PYTHON_CALL:
            if not item.caller:
                return 0  # there was none around it as it began
            item = item.outer
        return item.event_id if item is not None else 0

    def place(self, item: PythonRange, parent: PythonRange | None, clock: ClockMapping) -> None:
        """Choose the offset of a range that begins; ``parent`` may be open in another thread."""
        around = parent if parent is not None else self.innermost
        around_ns = around.offset_ns if around is not None else None
        item.offset_ns = self.offsets.choose(around_ns, parent is not None, clock.offset_ns, item.start_ns)
        self.offsets.passed(item.start_ns + item.offset_ns)


class Pairing:
    """The ranges that are open as of the records that were replayed; kept from drain to drain."""

    def __init__(self) -> None:
        self._open: dict[int, PythonRange] = {}
        self._threads: dict[ThreadLog, ThreadReplay] = {}

    def replay(self, clock: ClockMapping, builder: BatchBuilder, record: Record) -> None:
        """Replay the next record. Where something is raised meanwhile, it is replayed either not at all or in whole."""
        ticks, log, event_id, what, failure = record
        ns = clock.monotonic_ns(Ticks(ticks))
        if not isinstance(what, int):
            if self.has_seen(event_id, builder):
                return  # the last time something was raised when it had been replayed in whole
            self._begin(self._thread(log).at(ns), log, event_id, BeginFields._make(what), clock, builder)
        elif event_id in self._open:
            self._end(ns, log, self._open[event_id], what, failure, builder)

    def has_seen(self, event_id: int, builder: BatchBuilder) -> bool:
        """Whether the begin of that range, which is the next record, was replayed already."""
        return event_id in self._open or event_id == builder.newest_event_id()

    def note_jump(self) -> None:
        """The wall clock jumped: ranges that are open keep to the clock that they began with."""
        for item in self._open.values():
            item.flags |= CLOCK_JUMPED

    def innermost_first(self) -> list[PythonRange]:
        """Every open range, the innermost of each thread first."""
        return [item for thread in self._threads.values() for item in thread.open_ranges()]

    def close_partial(self, item: PythonRange, now_ns: int, builder: BatchBuilder) -> None:
        """Seal an open range as partial."""
        item.flags |= PARTIAL
        self._close(item, item.log, self._thread(item.log).at(now_ns), NO_FAILURE, builder)

    def copy_open(self, now_ns: int, builder: BatchBuilder) -> None:
        """Add every open range as if it ended now, the innermost of each thread first; they stay open."""
        for thread in self._threads.values():
            for item in thread.open_ranges():
                end_ns = max(now_ns, item.start_ns)
                builder.add(replace(item, flags=item.flags | PARTIAL, end_ns=end_ns, end_log=item.log))

    def count_open(self, builder: BatchBuilder | None) -> int:
        """How many ranges are open, and have no row yet."""
        has_row = builder is not None and builder.newest_event_id() in self._open
        return len(self._open) - has_row

    def has_open(self, log: ThreadLog) -> bool:
        """Whether a range that began in this thread may still end."""
        thread = self._threads.get(log)
        return thread is not None and thread.innermost is not None

    def forget(self, log: ThreadLog) -> None:
        """Forget a thread that is gone and of which everything is sealed."""
        self._threads.pop(log, None)

    def _thread(self, log: ThreadLog) -> ThreadReplay:
        thread = self._threads.get(log)
        if thread is None:
            thread = self._threads[log] = ThreadReplay()
        return thread

    def _begin(
        self, start_ns: int, log: ThreadLog, event_id: int, what: BeginFields, clock: ClockMapping, builder: BatchBuilder
    ) -> None:
        item = PythonRange(
            log=log,
            event_id=event_id,
            parent=what.parent,
            root=what.root,
            context=what.context,
            name=what.name,
            scope=what.scope,
            source=what.source,
            module=what.module,
            flags=what.flags,
            start_ns=start_ns,
            profiler=what.profiler,
            node_id=what.node_id,
            details=what.details or NO_DETAILS,
        )
        self._thread(log).place(item, self._open.get(item.parent), clock)
        if item.details.kind != EventKind.RANGE:
            builder.add(replace(item, end_ns=start_ns, end_log=log))
            return
        thread = self._thread(log)
        item.caller = thread.innermost_call()
        try:
            self._open[event_id] = item
            if not item.parent:
                builder.announce(item)
            item.outer, thread.innermost = thread.innermost, item  # last, and needs no memory
        except BaseException:  # out of memory, or a signal handler's
            if thread.innermost is not item:
                self._open.pop(event_id, None)
                builder.take_back_announcement(event_id)
            raise

    def _end(self, ns: int, ender: ThreadLog, item: PythonRange, flags: int, failure: Failure, builder: BatchBuilder) -> None:
        here = ender is item.log
        thread = self._thread(item.log)
        end_ns = thread.at(ns) if here else max(ns, item.start_ns)
        cut_ns = _let_out(item, thread) if here else None
        item.flags |= flags
        if not item.flags & ASYNC and (not here or (thread.innermost is not item and cut_ns is None)):
            item.flags |= CROSSING
        if failure.error:
            item.flags |= ERROR
        self._close(item, ender, end_ns if cut_ns is None else cut_ns, failure, builder)

    def _close(self, item: PythonRange, ender: ThreadLog, end_ns: int, failure: Failure, builder: BatchBuilder) -> None:
        item.end_ns, item.end_log, item.failure = end_ns, ender, failure
        thread = self._thread(item.log)
        thread.offsets.passed(end_ns + item.offset_ns)
        if builder.newest_event_id() != item.event_id:  # otherwise something was raised after its row was built
            builder.add(item)
        _unlink(item, thread)
        self._open.pop(item.event_id, None)


def _let_out(ended: PythonRange, thread: ThreadReplay) -> int | None:
    """Let what is open in a range that ends move out of it, where calls of Python code are concerned.

    A range begins in one call (``__enter__``) and ends in another (``__exit__``), which both return while it or they are open.
    So that all nest, what ends first ends where that began which stays open in it. Returns that moment; None where no call is
    concerned, or where what ends lies in nothing: what began in it then stays in it.
    """
    if thread.innermost is ended or not ended.parent or ended.flags & ASYNC:
        return ended.cut_ns
    inner, item = [], thread.innermost
    while item is not None and item is not ended:
        if not item.flags & ASYNC:
            inner.append(item)
        item = item.outer
    if ended.source != PYTHON_CALL and any([item.source != PYTHON_CALL for item in inner]):
        return ended.cut_ns
    for item in inner:
        if item.parent == ended.event_id:
            ended.cut_ns, item.parent = item.start_ns, ended.parent
            if item.caller == ended.event_id:
                item.caller = ended.caller
    return ended.cut_ns


def _unlink(item: PythonRange, thread: ThreadReplay) -> None:
    """Take a range out of its thread's open ranges, if it is there; needs no memory."""
    if thread.innermost is item:
        thread.innermost = item.outer
        return
    inner = thread.innermost
    while inner is not None and inner.outer is not item:
        inner = inner.outer
    if inner is not None:
        inner.outer = item.outer
