"""Types of the extension module (``native/``)."""

from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.recording.ranges import RangeObserver
from otel_recfn.sources.calls import ProgramTexts

"""The most bytes of texts, which are cut at a character (shapes, dtypes and inputs: left out), and the most open ranges."""

class Column:
    """The owner of a column's bytes."""

Contexts = list[tuple[int, int, int, int]]
Drained = tuple[
    dict[str, Column],
    dict[str, Column],
    int,
    list[str],
    list[tuple[int, int, int, int]],
    Contexts,
    int,
    int,
]

class Stage:
    """The native part of ``batches/stage.py``; see ``native/stage/stage_bindings.cpp``."""

    def __init__(self, budget: int, most_waiting: int) -> None: ...
    def add(self, batch: tuple[Any, ...], key: int, /) -> tuple[Any, ...]: ...
    def decide(self, units: NDArray[Any], key: int, is_long: bool, /) -> tuple[Any, ...]: ...
    def kept(self) -> tuple[Any]: ...
    def owe(self, roots: NDArray[np.uint64], /) -> tuple[Any]: ...

class ForwardRanges:
    """Forward ranges for the arrows of ``sinks/chrome/encoder.py``; see ``native/stage/stage_bindings.cpp``."""

    def link(
        self, batch: Batch, threads: NDArray[np.uint64], numbers: NDArray[np.uint64], /
    ) -> tuple[Column, ...]: ...

class record_function:
    """The public ``record_function``; see ``native/python/record_function.cpp``."""

    name: str
    args: str | None
    def __init__(self, name: str, args: str | None = None) -> None: ...
    def __enter__(self) -> record_function: ...
    def __exit__(self, *error: object) -> None: ...

class TaskEntry:
    """A range that a task is in. See ``native/python/task_entries.hpp``."""

    event_id: int
    root: int
    """The event id of the outermost range around it; its own if there is none."""
    beside_calls: int
    """The same, of the outermost range that is no Python call."""
    context_words: tuple[int, int, int, int]
    """The context in which that outermost range began: trace id (upper and lower half), span id, the reading's flags."""
    is_current: bool
    """Whether it belongs to the current recording, or to the last one if none is on."""
    scope: int
    source: int
    began: int
    """A number that is larger than that of every range which began before."""
    outer: TaskEntry | None
    """The entry before it in the task, even if that has ended; a span, which has no root, or None."""
    shown: Any
    """The span as which the program sees the range; None at first, and again when the range has ended."""

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
) -> int:
    """Open a range in this thread. Returns its event id, or 0 when it is not recorded (not recording, or no room).

    Its parent is what began last, as the calling task sees it: the innermost open range, or the span that is current. A range
    with EventFlag.ASYNC is among those ranges only between ``enter`` and ``leave``, any other from here to its end.
    The keywords are columns of its row; ``handle`` 0 becomes the event id.
    """

def end(
    event_id: int, error: str = "", flags: int = 0, stacktrace: str = "", *, attributes: str = ""
) -> int:
    """Close a range, from any thread. Zero and ids that are no longer open are ignored.

    ``error`` is ``"<exception type>: <message>"`` and sets EventFlag.ERROR; ``flags`` are EventFlag bits known only now.
    ``attributes`` is a JSON object of further attributes of its span: numbers, texts, or lists of one of them. These and
    ``stacktrace`` aren't kept if the range began on another thread. Returns the range's CPU time, as its column has it.
    """

def trace_calls(texts: ProgramTexts, is_own_thread: Callable[[], bool | None], /) -> None: ...
def profile_threads() -> bool: ...
def profile_this_thread(frame: FrameType, event: str, argument: object, /) -> None: ...
def unprofile_threads() -> None: ...
def monitoring_callbacks(missing: object, /) -> dict[str, Callable[..., None]]: ...
def stand_in_for_blocked_threads(native_ids: dict[int | None, int], /) -> None: ...
def untrace_calls() -> None: ...
def go_on_after_fork() -> None: ...
def mark(name: str, /) -> int: ...
def memory(nbytes: int, device: str, /) -> int:
    """Record bytes that were allocated (negative: freed) on a device. Returns the row's event id, as ``mark`` does, or 0."""

def set_profiler(profiler: int, /) -> None: ...
def set_thread_enabled(enabled: bool, /) -> bool:
    """Set whether begins in this thread are recorded, from any source; returns the setting before. Ends always are."""

def thread_enabled() -> bool: ...
def current_thread_id() -> int:
    """RecordFunction's logical id of this thread: PyTorch's, if that is observed, else the recorder's. Never used twice."""

def set_default_node_id(node_id: int, /) -> None:
    """Set this process's number in a distributed run, for rows from the next drain on. -1: PyTorch's own, if it has one."""

def default_node_id() -> int: ...
def set_own_directory(path: str, /) -> None: ...
def drain(close_open: bool, open_ranges: bool, epoch: int, known: int, /) -> Drained: ...
def count_discarded(rows: int, /) -> None: ...
def wait(seconds: float, /) -> None: ...
def wake() -> None: ...
def watch_calls(
    functions: tuple[FunctionType, ...],
    enter: Callable[[Any], Any],
    leave: Callable[..., object],
    /,
) -> None: ...
def set_frame_observer(setter: Callable[[Any], Any] | None, /) -> None: ...
def call_arguments() -> tuple[Any, ...]: ...
def unwatch_calls() -> None: ...
def counters() -> tuple[int, int, int, int]: ...
def set_context_reader(
    reader: Callable[[], tuple[int, int, int, int, int, int, object] | None] | None,
    thread_noter: Callable[[int], bool] | None,
    is_the_programs: Callable[[BaseException], bool],
    /,
) -> None: ...
def enter(event_id: int, /) -> TaskEntry | None:
    """Put the calling task into an open range; ``leave`` takes what is returned.

    What the task has begun since goes on enclosing, and after that the range, if it was begun in it. None if nothing
    changes: the range is over, or the task has begun something newer outside it.
    """

def leave(entry: TaskEntry, /) -> None: ...
def is_in(entry: TaskEntry, /) -> bool: ...
def ranges_after(span: object, /) -> tuple[TaskEntry, ...]:
    """The calling task's open ranges that began after a span became current, innermost first; all of them where
    ``span_attached`` wasn't called for it. Asynchronous ranges count only while the task has entered them."""

def before_launch(launcher: Any, /) -> Any:
    """Give ``launches`` of an object the current span and range, below which PyTorch is about to launch work."""

def launching_span() -> Any | None:
    """The span that is current in the calling thread because PyTorch works there for another one; None elsewhere."""

def task_serial() -> int: ...
def span_attached(span: object, token: object, /) -> None:
    """Note that the calling task attached a context with a span as the new current one; the token is for detaching it."""

def context_attached(token: object, /) -> None:
    """Note that the calling task attached a context with the same current span as before."""

def span_detached(token: object, /) -> None: ...
def core_api_address() -> int: ...
def set_record_function_helpers(
    decorate: Callable[..., Any],
    aenter: Callable[..., Any],
    aexit: Callable[..., Any],
    failure: Callable[[BaseException], tuple[str, str]],
    stand_in: type[Any],
    /,
) -> None: ...
def set_range_observer(observer: RangeObserver | None, version: int, /) -> None:
    """Let an observer open the ranges of ``record_function`` in the recorder's place, also while nothing is recorded. What it
    raises goes on to the program. A new version ends what ``leave_unobserved`` left, in every thread."""

def range_observer() -> RangeObserver | None: ...
def leave_unobserved(ranges: int, version: int, /) -> int:
    """Leave so many more of this thread's next ranges to the recorder, if the observer has this version. Returns how many."""

def take_back_unobserved() -> int:
    """Have the observer open the calling thread's next range again; how many were still left to the recorder."""

def encode_chrome_events(*arguments: Any) -> int: ...
def encode_chrome_flows(*arguments: Any) -> int: ...
def encode_otlp_spans(*arguments: Any) -> tuple[Column, Column]: ...
def add_durations(*arguments: Any) -> None: ...
def gather_rows(
    columns: tuple[tuple[str, NDArray[Any] | None, str | None], ...],
    held: tuple[tuple[NDArray[np.int64], NDArray[np.int64], Any], ...],
    numbers: NDArray[np.int64],
    /,
) -> tuple[dict[str, Any], list[str], list[int]]: ...
def zero_upper_vectors() -> None: ...
