"""The columns of a batch: each is declared once, in ``Columns``.

All else follows from the declaration: the arrays of a batch and the values of an event, the rows
that a drain writes and what Python is given of them, what a capture's view leaves out, attributes
of spans, and arguments in Chrome traces. What C++ needs of it stands in
``native/model/columns.hpp``, which ``scripts/generate_model.py`` writes.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.events import (
    CPU_TIME,
    STEP_NUMBER,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
)

EACH_KEY = "*"
D = TypeVar("D", bound=np.generic)
V = TypeVar("V")


class Track(NamedTuple):
    """A thread that recorded something."""

    number: int
    """The recorder's own number of the thread, from 1, never reused: the upper bits of the
    thread's event ids.
    """
    thread_id: int
    """RecordFunction's logical id, the same as long as the thread lives: PyTorch's if torch was
    imported by the time that the thread first recorded or asked for it, else the recorder's number.
    """
    native_id: int
    """The operating system's thread id (``threading.get_native_id()``)."""
    ident: int
    """``threading.get_ident()`` of the thread; 0 if there is none."""
    name: str
    """Python's name of the thread; empty if there is none."""


class SpanContextRef(NamedTuple):
    """The OpenTelemetry span that was current; all zero if there was none."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits."""
    trace_state: str = ""
    """The W3C header ``tracestate``; empty if there is none."""


NO_CONTEXT = SpanContextRef(0, 0, 0)


@dataclass(eq=False)
class Column(Generic[D, V]):
    """A column, with all that follows from it."""

    dtype: type[D]
    """The dtype of a batch's array."""
    value: type[V]
    """The value of an event.

    A str is held as an index into the batch's names (0 is the empty string: not recorded), a Track
    as one into its tracks, a SpanContextRef as one into its contexts.
    """
    meaning: str
    empty: int = 0
    """The value that stands for nothing."""
    in_opened: bool = False
    """Whether ``Opened`` has it, for an outermost range that began."""
    is_optional: bool = False
    """Whether few drains have any value: the recorder leaves the column out if every row is
    empty.
    """
    in_prelude: bool = False
    """Whether few begins have the number: a recorder writes it before those, and nothing before
    others.
    """
    in_end_prelude: bool = False
    """Whether few ends have the number: the same for ends."""
    is_json: bool = False
    """Whether the text is JSON, a list or an object."""
    extra: Extra = Extra.NONE
    """The extra that a capture must ask for to see it."""
    attribute: str = ""
    """The name of the span attribute, for rows that aren't empty; empty for none.

    EACH_KEY: one for each key of an object.
    """
    argument: str = ""
    """The name of the argument in Chrome traces, for rows that aren't empty; empty for none."""
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:

        @overload
        def __get__(self, holder: ColumnArrays, owner: type) -> NDArray[D]: ...
        @overload
        def __get__(self, holder: ColumnValues, owner: type) -> V: ...
        def __get__(self, holder: Any, owner: type) -> Any: ...


def _text(meaning: str, **more: Any) -> Column[np.uint32, str]:
    return Column(np.uint32, str, meaning, **more)


class Columns:
    """The columns, in order."""

    event_id = Column(
        np.uint64,
        int,
        "Unique in the process; the same in spans, Chrome traces and the legacy profiler.",
        in_opened=True,
        attribute="recfn.event_id",
    )
    kind = Column(np.uint8, RowKind, "What the row is.")
    name = _text("As PyTorch or the program reports it.", in_opened=True)
    scope = Column(np.uint8, RecordScope, "What kind of range PyTorch announces.")
    source = Column(np.uint8, EventSource, "Who said begin and end.", in_opened=True)
    start_ns = Column(np.int64, int, "Unix nanoseconds.", in_opened=True)
    end_ns = Column(
        np.int64, int, "Unix nanoseconds; a mark and a change of memory end when they start."
    )
    thread = Column(np.uint32, Track, "The thread that began it.", in_opened=True)
    end_thread = Column(np.uint32, Track, "The thread that ended it.")
    sequence_nr = Column(
        np.int64,
        int,
        "The same for a forward operator and its backward node; -1 if there is none.",
        empty=-1,
        attribute="recfn.sequence_nr",
        argument="Sequence number",
    )
    forward_thread_id = Column(
        np.uint64,
        int,
        "RecordFunction's id of the forward operator's thread; 0 if there is none.",
        attribute="recfn.forward_thread_id",
        argument="Fwd thread id",
    )
    handle = Column(
        np.uint64, int, "RecordFunction's handle of the range.", attribute="recfn.handle"
    )
    parent = Column(
        np.uint64,
        int,
        "Event id of the innermost enclosing range of the same task; 0 at top level.",
    )
    root = Column(
        np.uint64,
        int,
        "Event id of the outermost enclosing range in the same span, the row's own directly in a"
        " span or at top level.",
    )
    context = Column(
        np.uint32, SpanContextRef, "The span that was current when ``root`` began.", in_opened=True
    )
    debug_handle = Column(
        np.int64,
        int,
        "PyTorch's debug handle; -1 if there is none.",
        empty=-1,
        is_optional=True,
        attribute="recfn.debug_handle",
        argument="Debug handle",
    )
    flags = Column(np.uint32, EventFlag, "EventFlag bits.", in_opened=True)
    shapes = _text(
        "JSON, a shape per input: ``[[2,3],[]]``; a scalar is ``[]``, a tensor list a list of"
        " shapes.",
        is_optional=True,
        is_json=True,
        extra=Extra.SHAPES,
        attribute="recfn.input_shapes",
        argument="Input Dims",
    )
    dtypes = _text(
        "JSON, a list of strings.",
        is_optional=True,
        is_json=True,
        extra=Extra.SHAPES,
        attribute="recfn.input_dtypes",
        argument="Input type",
    )
    module = _text(
        "The path of the nn.Module that the range is a call of.",
        is_optional=True,
        attribute="recfn.module",
        argument="Module",
    )
    error = _text(
        "``<exception type>: <message>`` of what the range was left by.",
        is_optional=True,
        argument="Error",
    )
    node_id = Column(
        np.int64,
        int,
        "The process's node in a distributed run as it began; -1 if there was none.",
        empty=-1,
        is_optional=True,
        attribute="recfn.node_id",
        argument="Node id",
    )
    end_node_id = Column(
        np.int64,
        int,
        "The same as the range ended; -1 while it is open, too.",
        empty=-1,
        is_optional=True,
    )
    profiler = Column(
        np.uint32,
        int,
        "The profiler run that the thread worked for; 0 if there was none.",
        is_optional=True,
    )
    flops = Column(
        np.int64,
        int,
        "Floating point operations; 0 where nobody asked or PyTorch doesn't count them.",
        is_optional=True,
        in_prelude=True,
        extra=Extra.FLOPS,
        argument="Flops",
    )
    stack = _text(
        "One ``file(line): function`` a line, innermost first.",
        is_optional=True,
        extra=Extra.STACK,
        argument="Call stack",
    )
    nbytes = Column(
        np.int64,
        int,
        "Of a row of RowKind.MEMORY: what was allocated; negative: freed.",
        is_optional=True,
    )
    device = _text(
        "Of a row of RowKind.MEMORY: where, ``cpu`` or ``cuda:0``.",
        is_optional=True,
        argument="Device",
    )
    caller = Column(
        np.uint64,
        int,
        "Event id of the innermost traced Python call that was open in the thread when it began; 0"
        " if there was none.",
        is_optional=True,
    )
    step_number = Column(
        np.int64,
        int,
        "Of a step: its number; -1 where the range is none.",
        empty=-1,
        is_optional=True,
        in_prelude=True,
        attribute=STEP_NUMBER,
        argument=STEP_NUMBER,
    )
    module_class = _text(
        "The class of the nn.Module that it is a call of, for spans, whose names are the module's"
        " path.",
        is_optional=True,
        attribute="recfn.module.class",
    )
    enclosing_module = _text(
        "The path of the nn.Module whose call is around that of an nn.Module, in the same thread;"
        " empty if that one has none.",
        is_optional=True,
    )
    stacktrace = _text(
        "Where the exception was raised that the range was left by.", is_optional=True
    )
    code = _text(
        "What it is a call of, where that is known: ``file(line): function``.", is_optional=True
    )
    call_site = _text(
        "Of a Python call, where asked for: the line that called, ``file(line): function``.",
        is_optional=True,
        argument="Call site",
    )
    concrete_inputs = _text(
        "JSON, a string per input, as torch.profiler writes numbers and short lists of them:"
        ' ``["","1","[2, 3]","True"]``.',
        is_optional=True,
        is_json=True,
        extra=Extra.SHAPES,
        argument="Concrete Inputs",
    )
    attributes = _text(
        "A JSON object: further attributes of the span, which the range's end has, by their names.",
        is_optional=True,
        is_json=True,
        attribute=EACH_KEY,
        argument="Attributes",
    )
    generation = _text(
        "A JSON object: the ``GenerationStart`` of a generation, on the first range ``decode`` of"
        " it.",
        is_optional=True,
        is_json=True,
    )
    cpu_time_ns = Column(
        np.int64,
        int,
        "The time its thread worked from begin to end, for module calls, steps and outermost"
        " record_function ranges; -1 for others, and if another thread or task had a part in it.",
        empty=-1,
        is_optional=True,
        in_end_prelude=True,
        attribute=CPU_TIME,
        argument="CPU time (ns)",
    )


COLUMNS: tuple[Column[Any, Any], ...] = tuple(
    [each for each in vars(Columns).values() if isinstance(each, Column)]
)
BY_SIZE = tuple(sorted(COLUMNS, key=lambda column: -np.dtype(column.dtype).itemsize))
"""The columns as C++ has them, in the order in which spans and Chrome traces show them."""
COLUMN_TYPES: dict[str, type[np.generic]] = {column.name: column.dtype for column in COLUMNS}
ROW_BYTES = sum([np.dtype(dtype).itemsize for dtype in COLUMN_TYPES.values()])
TEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.value is str)
TRACK_COLUMNS = tuple(column.name for column in COLUMNS if column.value is Track)
CONTEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.value is SpanContextRef)
OPENED_COLUMNS = tuple(column.name for column in COLUMNS if column.in_opened)

if TYPE_CHECKING:

    class ColumnArrays(Columns):
        """The arrays of a batch's columns."""

    class ColumnValues(Columns):
        """The values of a row, with every index resolved."""

        def __init__(self, *values: Any) -> None: ...

else:
    ColumnArrays = make_dataclass("ColumnArrays", list(COLUMN_TYPES), frozen=True, eq=False)
    ColumnValues = make_dataclass("ColumnValues", list(COLUMN_TYPES), frozen=True, slots=True)
