"""Types of the extension module (``native/``)."""

import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context
from typing_extensions import Self

from otel_recfn.batches.python_ids import CallIds
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.recording.ranges import RangeObserver
from otel_recfn.recording.types import ContextReading
from otel_recfn.sinks.chrome.arrows import Arrows
from otel_recfn.sources.calls import ProgramTexts

class Column:
    """The owner of a column's bytes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

ColumnDescriptions = tuple[tuple[str, NDArray[Any] | None, str | None], ...]
"""Each column's name, what stands for it in batches that have nothing there, and the table that
it indexes.
"""

class ThreadRow(NamedTuple):
    """A thread of a drain's rows, as ``Track``; ``ident`` is kept where the thread has ended."""

    number: int
    thread_id: int
    native_id: int
    ident: int

class ContextRow(NamedTuple):
    """A span that was current, of a drain's rows."""

    trace_high: int
    trace_low: int
    span_id: int
    flags: int
    """ContextFlag bits, and those of ``TraceStates.keep``."""

class TrainingStep(NamedTuple):
    """A training step that is over, as that of ``model/batch.py``."""

    number: int
    first: int
    last: int
    start_ns: int
    end_ns: int
    thread: int
    context: int
    is_marked: bool

class Sample(NamedTuple):
    """What a thread ran in Python while it recorded nothing, as that of ``model/batch.py``."""

    parent: int
    last_begun: int
    time_ns: int
    duration_ns: int
    since_ns: int
    name: int
    thread: int
    context: int
    waits_for: int
    item: int
    is_directly_in_span: bool
    is_in_operator: bool

class QuietThread(NamedTuple):
    """A thread that has recorded nothing for a millisecond."""

    number: int
    ident: int
    native_id: int
    position: int
    """The position of its ring."""
    duration_ns: int
    """The time since the thread was looked at before."""
    quiet_ns: int
    """The time for which looks have found it there."""
    interval_ns: int
    """The last part of that time, of which CPU clocks say the following; 0: they say nothing."""
    worked_ns: int
    """The thread's own work."""
    coreless_ns: int
    """The time that it waited for a core."""
    others_ns: int
    """The work of the process's other threads."""
    busiest: int
    """The native id of that which worked most."""

class Drained(NamedTuple):
    """What closed since the last drain."""

    rows: dict[str, Column]
    """The columns by name, without those that are seldom filled where none of them is."""
    opened: dict[str, Column]
    """The columns of the announced ranges."""
    epoch: int
    """The epoch of the names."""
    new_names: list[str]
    """The names that the caller doesn't have."""
    threads: list[ThreadRow]
    contexts: list[ContextRow]
    closed: int
    """The number of rows that are no copies of open ranges."""
    clock_jump_ns: int
    """The nanoseconds by which the wall clock was set, if by over a second."""
    steps: list[TrainingStep]
    unfinished_steps: list[TrainingStep]
    """With copies of open ranges: copies of the steps that go on, as if they were over."""
    samples: list[Sample]

class Moment(NamedTuple):
    """A moment by all clocks, in a thread."""

    ticks: int
    monotonic_ns: int
    unix_ns: int
    """By the clock that rows have."""
    enclosing: int
    """The event id of the innermost range that is open on the thread's stack; 0 if there is none.

    Asynchronous ranges aren't counted.
    """

class Counters(NamedTuple):
    """As ``RecorderCounters``."""

    dropped: int
    lost_ends: int
    lost_in_drain: int
    unsampled: int

TABLE_TYPES: dict[str, Any]
"""The types of the stage's tables, for ``numpy.dtype``."""

class NewUnit(NamedTuple):
    unit: int
    root: int
    """The ``first`` of the root of ours above it; 0: ``context`` says which span is above."""
    context: int

class UnendedUnit(NamedTuple):
    unit: int
    is_quiet: bool
    """Whether nothing is open in it and nothing came for a while: its span may have ended
    unseen.
    """

class UnitSummary(NamedTuple):
    unit: int
    start_ns: int
    end_ns: int
    last_ns: int
    """The end of it, or of this part."""
    rows: int
    """The number of rows since its last part; the next three are of these."""
    top_ns: int
    """The time of outermost ranges whose CPU time is known, but for those in a step with a span."""
    top_cpu_ns: int
    failed_rows: int
    failed: bool
    """Whether a row failed, also one of earlier parts, or its span."""
    has_ended: bool
    """Whether its span has."""

class Added(NamedTuple):
    outcomes: list[int]
    planned: int
    """The number of rows that become spans or are folded."""
    new_units: list[NewUnit]
    largest_unit_rows: int
    """The rows of the unit of this batch that has most of them."""
    names: int
    """The number of names that the stage knows."""

class Planned(NamedTuple):
    outcomes: list[int]
    new_units: list[NewUnit]
    row: Column
    parent: Column
    parent_span: Column
    linked_id: Column | None
    linked_span: Column | None
    traces: Column

class Decided(NamedTuple):
    batch: Batch
    event_id: Column | None
    parent: Column
    parent_span: Column
    linked_id: Column | None
    linked_span: Column | None
    traces: Column
    sums: Column
    top: Column
    summaries: Column
    callers: Column
    names: dict[int, str]

class Stage:
    """The native part of ``batches/stage.py``; see ``native/stage/stage_bindings.cpp``."""

    def __new__(
        cls,
        *,
        budget: int,
        max_waiting: int,
        max_units: int,
        max_rows: int,
        many_rows: int,
        torch_names: bool,
        rows_to_spare: int,
        max_batches: int,
        columns: ColumnDescriptions,
        batch_from_fields: Callable[[Mapping[str, Any], int, bool], Batch],
    ) -> Self: ...
    def _add(
        self, batch: Batch, contexts: NDArray[Any], roots: NDArray[Any], continues: bool, /
    ) -> Added: ...
    def _plan(
        self, batch: Batch, contexts: NDArray[Any], roots: NDArray[Any], key: int, /
    ) -> Planned: ...
    def _decide(
        self, grants: NDArray[Any], sampled: NDArray[Any], is_partial: bool, key: int, /
    ) -> Decided: ...
    def _find(self, trace_high: int, trace_low: int, span_id: int, /) -> int: ...
    def end_span(
        self, unit: int, *, ended_by_ns: int, start_ns: int | None, end_ns: int | None, failed: bool
    ) -> None:
        """Say that the span above a unit has ended.

        Ranges that had ended with it may come until the drain after ``ended_by_ns``. Its times are
        None if the program gave something else.
        """

    def finish(self, unit: int, *, takes_sums: bool = False) -> None:
        """Say that nothing more comes to a unit.

        ``takes_sums``: the span above is ours, and takes the sums of what is folded into it.
        """

    def note_idle(self) -> None:
        """Say that no batch came for as long as one takes."""

    def unended(self) -> list[UnendedUnit]: ...
    def due(self, drained_ns: int, now_ns: int, /) -> list[UnitSummary]:
        """The units to be decided now, as nothing more comes to them, or there are too many.

        ``drained_ns`` is the begin of the last drain, ``now_ns`` the current time.
        """

    def units(self, *, min_rows: int = 0) -> list[UnitSummary]:
        """The open units that have so many rows since their last part."""

    def add_nodes(self) -> None:
        """Let backward nodes wait no longer for the ranges around them, so that names can be
        forgotten after the next parts.
        """

    def forget_names(self) -> None: ...
    def waiting_rows(self) -> int:
        """The number of rows that wait, as some of them may be kept."""

class Links(NamedTuple):
    """As that of ``batches/forward_links.py``."""

    row: Column
    event_id: Column
    start_ns: Column
    number: Column

class ForwardRanges:
    """Forward ranges for the arrows of ``sinks/chrome/encoder.py``; see
    ``native/stage/forward_ranges_bindings.cpp``.
    """

    def link(
        self, batch: Batch, threads: NDArray[np.uint64], numbers: NDArray[np.uint64], /
    ) -> Links: ...

class TraceState(NamedTuple):
    end_ns: int
    until: int
    """The event id before which its outermost ranges began."""
    has_next: bool
    """Whether another trace has begun in its thread."""
    is_over: bool
    """Whether nothing more begins in it."""
    is_open: bool
    """Whether a range in it is open."""
    is_before_current: bool
    """Whether the trace after it goes on."""

class OwnTraces:
    """The native part of ``sinks/spans/step_traces.py``; see ``native/stage/own_traces.hpp``.

    For one thread at a time. ``begin_sources`` has a bit for each source of which each outermost
    range begins a trace.
    """

    def __new__(cls, *, begin_sources: int) -> Self: ...
    def advance(
        self,
        batch: Batch,
        /,
        *,
        outside: NDArray[np.bool_],
        asked: NDArray[Any],
        idle_ns: int,
        short_idle_ns: int,
    ) -> Column:
        """Take in a batch; the traces that began.

        ``outside`` says of each context whether no span is around its ranges, ``asked`` has
        outermost ranges that the program has asked about.
        """

    def end_idle(self, now_ns: int, idle_ns: int, /) -> None:
        """End the traces in whose threads nothing ran for so long."""

    def end_closed(self) -> None:
        """End the traces in which nothing is open."""

    def end_all(self) -> None: ...
    def state(self, begin: int, /) -> TraceState | None:
        """What is known of the trace that begins with that range; None if it was forgotten."""

    def is_in_call(self, begin: int, event_id: int, /) -> bool:
        """Whether a range of that trace lies in a traced Python call of it."""

    def live(self) -> Column:
        """The traces to which more may come or in which a range is open, in ascending order."""

class record_function:
    """The public ``record_function``; see ``native/python/record_function.cpp``."""

    name: str
    args: str | None
    def __init__(self, name: str, args: str | None = None) -> None: ...
    def __enter__(self) -> record_function: ...
    def __exit__(self, *error: object) -> None: ...

class TaskEntry:
    """A range that a task is in. See ``native/parents/tasks/task_chain.hpp``."""

    event_id: int
    root: int
    """The event id of the outermost range around it; its own if there is none."""
    root_without_calls: int
    """The same, of the outermost range that is no Python call."""
    trace_high: int
    """The upper half of the trace id of the context in which that outermost range began."""
    trace_low: int
    span_id: int
    context_flags: int
    """The flags of that context's reading."""
    is_current: bool
    """Whether it belongs to the current recording, or to the last one if none is on."""
    scope: int
    source: int
    name: str | None
    """The name of a module's call or a step, after which a trace may be called; else None."""
    flags: int
    """The EventFlag bits that are known at the begin, of a range that has a name."""
    began: int
    """A number that is larger than that of every range which began before."""
    outer: TaskEntry | None
    """The entry before it in the task, even if that has ended; a span, which has no root, or
    None.
    """
    exposed: tuple[Any, Any] | None
    """The attached context, and the one with the range as a span that the program sees meanwhile;
    None at first, and again when the range has ended.
    """
    def expose(self, by: int, attached: object, exposed: object, /) -> bool:
        """Keep what the program sees while a context is attached, as ``by`` has decided; False if
        the range is over.
        """

    def hide(self, by: int, /) -> None:
        """Keep that the range isn't shown, as ``by`` has decided."""

def start(scopes: int, buffer_bytes: int, extras: int, sampled_alone: bool, /) -> None: ...
def stop() -> None: ...
def recording() -> bool: ...
def extras() -> int: ...
def begin(
    name: str,
    scope: int,
    source: int,
    module: str = "",
    flags: int = 0,
    *,
    sequence_nr: int = -1,
    forward_thread_id: int = 0,
    handle: int = 0,
    debug_handle: int = -1,
    shapes: str = "",
    dtypes: str = "",
    step_number: int = -1,
    code: str = "",
    at: int = 0,
) -> int:
    """Open a range in this thread.

    Returns its event id, or 0 when it is not recorded (not recording, or no room).

    Its parent is what began last, as the calling task sees it: the innermost open range, or the
    span that is current. A range with EventFlag.ASYNC is among those ranges only between ``enter``
    and ``leave``, any other from here to its end. The keywords are columns of its row, but for
    ``at``, the ticks of a ``moment`` at which it began; 0: now. ``handle`` 0 becomes the event id.
    """

def end(
    event_id: int,
    error: str = "",
    flags: int = 0,
    stacktrace: str = "",
    *,
    attributes: str = "",
    generation: str = "",
    at: int = 0,
) -> int:
    """Close a range, from any thread. Zero and ids that are no longer open are ignored.

    ``error`` is ``"<exception type>: <message>"`` and sets EventFlag.ERROR; ``flags`` are EventFlag
    bits known only now. ``attributes`` is a JSON object of further attributes of its span: numbers,
    texts, or lists of one of them; ``generation`` is its column. These and ``stacktrace`` aren't
    kept if the range began on another thread. ``at`` is as in ``begin``. Returns the range's CPU
    time, as its column has it.
    """

def trace_calls(texts: ProgramTexts, is_own_thread: Callable[[], bool | None], /) -> None: ...
def profile_threads() -> bool: ...
def profile_this_thread(frame: FrameType, event: str, argument: object, /) -> None: ...
def unprofile_threads() -> None: ...
def monitoring_callbacks(missing: object, /) -> dict[str, Callable[..., None]]: ...
def record_blocked_threads(native_ids: dict[int | None, int], /) -> None: ...
def untrace_calls() -> None: ...
def go_on_after_fork() -> None: ...
def mark(name: str, /) -> int: ...
def memory(nbytes: int, device: str, /) -> int:
    """Record bytes that were allocated (negative: freed) on a device.

    Returns the row's event id, as ``mark`` does, or 0.
    """

def set_profiler(profiler: int, /) -> None: ...
def set_thread_enabled(enabled: bool, /) -> bool:
    """Set whether begins in this thread are recorded, from any source; returns the setting
    before.

    Ends always are.
    """

def thread_enabled() -> bool: ...
def current_thread_id() -> int:
    """RecordFunction's logical id of this thread, as long as it lives; never used twice.

    It is PyTorch's if that numbers threads by the time of the first call, else the recorder's.
    """

def moment() -> Moment:
    """This moment, in the calling thread."""

def follow_torchs_thread_ids(address: int, /) -> None:
    """Have PyTorch number threads from now on, by its C++ function at that address."""

def thread_id_of(torchs_id: int, /) -> int:
    """RecordFunction's logical id of the thread that PyTorch calls so."""

def set_default_node_id(node_id: int, /) -> None:
    """Set this process's number in a distributed run. -1: PyTorch's own, if it has one."""

def default_node_id() -> int: ...
def set_own_directory(path: str, /) -> None: ...
def drain(
    *,
    close_open: bool,
    open_ranges: bool,
    end_steps: bool,
    idle_ns: int,
    short_idle_ns: int,
    epoch: int,
    known: int,
) -> Drained:
    """What closed since the last drain.

    The first three are as in ``Recorder.drain``. A training step ends where nothing ran for
    ``idle_ns``, or for ``short_idle_ns`` if it began as neither training nor a call. ``known`` is
    the number of names that the caller has of an ``epoch``.
    """

def trace_of(
    event_id: int, idle_ns: int, short_idle_ns: int, /
) -> tuple[int, str, int, int] | None:
    """The range with which the trace of an open outermost range begins, if no span is around it:
    event id, name, source and flags.

    What the range's thread has recorded is read until now; a drain gives it out later. None if the
    range isn't known, or lies directly in nothing but traced Python calls.
    """

def discard_unread() -> None: ...
def count_discarded(rows: int, /) -> None: ...
def wait(seconds: float, /) -> None: ...
def wake() -> None: ...
def begin_looks() -> None:
    """Follow the threads that record something from now on."""

def wait_for_quiet(seconds: float, /) -> list[QuietThread]:
    """Look 50 times a second which of them record nothing, until some don't, ``wake_looks`` is
    called, or the time is over.
    """

def wake_looks() -> None: ...
def current_frames() -> dict[int, FrameType]: ...
def add_sample(
    *,
    thread_number: int,
    position: int,
    duration_ns: int,
    name: str,
    waits_for: str,
    item: str,
) -> None: ...
def watch_calls(
    functions: tuple[FunctionType, ...],
    enter: Callable[[Any], Any],
    leave: Callable[..., object],
    /,
) -> None: ...
def set_frame_observer(setter: Callable[[Any], Any] | None, /) -> None: ...
def call_arguments() -> tuple[Any, ...]: ...
def unwatch_calls() -> None: ...
def counters() -> Counters: ...
def set_context_reader(
    reader: Callable[[], ContextReading | None] | None,
    thread_noter: Callable[[int], bool] | None,
    is_the_programs: Callable[[BaseException], bool],
    /,
) -> None: ...
def enter(event_id: int, /) -> TaskEntry | None:
    """Put the calling task into an open range; ``leave`` takes what is returned.

    What the task has begun since goes on enclosing, and after that the range, if it was begun in
    it. None if nothing changes: the range is over, or the task has begun something newer outside
    it.
    """

def leave(entry: TaskEntry, /) -> None: ...
def is_in(entry: TaskEntry, /) -> bool: ...
def ranges_after(span: object, /) -> tuple[TaskEntry, ...]:
    """The calling task's open ranges that began after a span became current, innermost first; all
    of them where ``span_attached`` wasn't called for it.

    Asynchronous ranges count only while the task has entered them.
    """

def before_launch(launcher: Any, /) -> Any:
    """Give ``launches`` of an object the current span and range, below which PyTorch is about to
    launch work.
    """

def launching_span() -> Any | None:
    """The span that is current in the calling thread because PyTorch works there for another
    one; None elsewhere.
    """

def task_serial() -> int: ...
def set_context_variable(variable: ContextVar[Any], value: object, /) -> None:
    """Set a variable of ours: what a signal handler sets meanwhile doesn't get in between, as in
    ``variable.set(value)``.
    """

def span_attached(span: object, token: object, /) -> None:
    """Note that the calling task attached a context with a span as the new current one; the
    token is for detaching it.
    """

def context_attached(token: object, /) -> None:
    """Note that the calling task attached a context with the same current span as before."""

def span_detached(token: object, /) -> None: ...
def expose_step(span: object, attached: object, exposed: object, /) -> TaskEntry:
    """Put the calling task into a step's span: while ``attached`` is attached, the other context
    is current in its place.
    """

def end_step(entry: TaskEntry, /) -> None:
    """End the span that ``expose_step`` has shown, in every task that is in it."""

def current_in_step(attached: Context, /) -> Context:
    """The current context in the calling task where one is attached, but for ranges: that, or the
    one of a step that was entered since.
    """

class ContextFunction:
    """OpenTelemetry's ``attach``, ``detach`` or ``get_current``, watched. See
    ``native/parents/tasks/context_functions.cpp``.
    """

    def __init__(
        self,
        name: str,
        original: Callable[..., Any],
        variable: ContextVar[Any] | None,
        see: Callable[[Any], object],
    ) -> None:
        """``variable``: of which the original calls a method, and does nothing else. ``see``:
        for ``get_current``, makes what the program sees of the attached context, where that isn't
        known.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    original: Callable[..., Any]
    exposed_by: int
    """Of ``get_current``: who exposes ranges, as ``TaskEntry.expose`` has it; 0: nobody."""
    active: bool
    """Whether it does more than pass calls on."""

def set_span_lookup(key: str | None, none: object, find: Callable[[Context], object], /) -> None:
    """Say where OpenTelemetry keeps the current span: by which key in a context, what stands for
    one where there is none, and its own function, for where the key isn't known.
    """

def take_current_spans() -> list[weakref.ref[Any]]:
    """The newest of the spans that became current by ``attach`` or a step since the last call, the
    oldest first.
    """

def core_api_address() -> int: ...
def set_record_function_helpers(
    *,
    decorate: Callable[..., Any],
    aenter: Callable[..., Any],
    aexit: Callable[..., Any],
    failure: Callable[[BaseException], tuple[str, str]],
    replacement: type[Any],
) -> None: ...
def set_range_observer(observer: RangeObserver | None, version: int, /) -> None:
    """Let an observer open the ranges of ``record_function`` in the recorder's place, also while
    nothing is recorded.

    What it raises goes on to the program. A new version ends what ``leave_unobserved`` left, in
    every thread.
    """

def range_observer() -> RangeObserver | None: ...
def leave_unobserved(ranges: int, version: int, /) -> int:
    """Leave so many more of this thread's next ranges to the recorder, if the observer has this
    version.

    Returns how many.
    """

def take_back_unobserved() -> int:
    """Have the observer open the calling thread's next range again; how many were still left to
    the recorder.
    """

def encode_chrome_events(
    batch: Batch,
    rows: NDArray[np.int64],
    *,
    pid: int,
    base_ns: int,
    memory: bytearray,
    ids: CallIds | None,
) -> int:
    """Write rows as Chrome trace events to the start of ``memory``, which grows as needed.

    ``ids`` are those of the batch's rows; None: no row has any. Returns the number of bytes.
    """

def encode_chrome_flows(
    arrows: Arrows, *, first_id: int, pid: int, base_ns: int, memory: bytearray
) -> int:
    """Write arrows from forward slices to their backward ones, as ``encode_chrome_events``."""

def encode_otlp_spans(
    plan: SpanPlan,
    *,
    parent_span: list[tuple[bytes, bytes, int]],
    key: int,
    fragment: Callable[[int, int], bytes],
    extra_fields: dict[int, bytes],
) -> tuple[Column, Column]:
    """The spans of a plan as fields of ScopeSpans, and of each where it ends, as int64.

    ``parent_span`` says of each of the plan's ``parent_spans`` the trace's id, its state's field
    and the span's id; ``extra_fields`` are the fields of extra attributes, by row. ``fragment``
    makes what spans share, by kind and index.
    """

def add_durations(
    batch: Batch,
    numbers: NDArray[np.int32],
    series: NDArray[np.int64],
    buckets: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    /,
) -> None:
    """Add the durations of a batch's ranges to the sums of their series."""

def gather_batches(
    columns: ColumnDescriptions, batches: tuple[Batch, ...], /
) -> dict[str, Any]: ...
def zero_upper_vectors() -> None: ...
