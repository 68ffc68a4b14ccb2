"""The one table of columns: what every row of a batch says, each column declared once.

From it, and from ``events.py``, ``sources.py`` and ``scope.py``, ``scripts/generate_model.py`` writes what can't be derived
when the program runs: the attributes of Batch and Event for type checkers (``column_fields.py``), and their C++ form
(``native/model/``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otel_recfn.model.events import EventFlag, EventKind, EventSource, RecordScope


class Track(NamedTuple):
    """A thread that recorded something."""

    number: int
    """The recorder's own number, from 1, never reused: the upper bits of the thread's event ids."""
    thread_id: int
    """RecordFunction's logical thread id (PyTorch's where PyTorch is observed, else the recorder's number)."""
    native_id: int
    """The operating system's thread id (``threading.get_native_id()``)."""
    ident: int
    """``threading.get_ident()`` of the thread; 0 where it has none."""
    name: str
    """Python's name of the thread; empty where it has none."""


class SpanContextRef(NamedTuple):
    """The OpenTelemetry span that was current; all zero where none was."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits."""
    trace_state: str = ""
    """As in the W3C header ``tracestate``; empty where there is none."""


NO_CONTEXT = SpanContextRef(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch."""

    name: str
    dtype: type[np.generic]
    """Of what a batch holds."""
    meaning: str
    value: type = int
    """What an Event has. A str is held as an index into the batch's names (0 is the empty string: not recorded), a Track
    as one into its threads, a SpanContextRef as one into its contexts."""
    empty: int = 0
    """What says that there is nothing."""
    announced: bool = False
    """Also told of a top-level range that began: ``Opened`` has it."""
    seldom: bool = False
    """Few drains have any: the recorder doesn't write it in those where it is empty in every row."""


COLUMNS = (
    Column(
        "event_id",
        np.uint64,
        "Unique in the process; the same in spans, Chrome traces and the legacy profiler.",
        announced=True,
    ),
    Column("kind", np.uint8, "What the row is.", EventKind),
    Column("name", np.uint32, "As PyTorch or the program reports it.", str, announced=True),
    Column("scope", np.uint8, "What kind of range PyTorch announces.", RecordScope),
    Column("source", np.uint8, "Who said begin and end.", EventSource, announced=True),
    Column("start_ns", np.int64, "Unix nanoseconds.", announced=True),
    Column("end_ns", np.int64, "Unix nanoseconds; a mark and a change of memory end when they start."),
    Column("thread", np.uint32, "The track that began it: a thread, mostly.", Track, announced=True),
    Column("end_thread", np.uint32, "The track that ended it.", Track),
    Column("sequence_nr", np.int64, "The same for a forward operator and its backward node; -1 where there is none.", empty=-1),
    Column("forward_thread_id", np.uint64, "RecordFunction's id of the forward operator's thread; 0 where there is none."),
    Column("handle", np.uint64, "RecordFunction's handle of the range."),
    Column("parent", np.uint64, "Event id of the enclosing range; 0 at top level."),
    Column("root", np.uint64, "Event id of the outermost enclosing range, the row's own at top level."),
    Column(
        "context", np.uint32, "The span that was current when the row's outermost range began.", SpanContextRef, announced=True
    ),
    Column("debug_handle", np.int64, "PyTorch's debug handle; -1 where there is none.", empty=-1, seldom=True),
    Column("flags", np.uint32, "EventFlag bits.", EventFlag, announced=True),
    Column(
        "shapes",
        np.uint32,
        "JSON, a shape per input: ``[[2,3],[]]``; a scalar is ``[]``, a tensor list a list of shapes.",
        str,
        seldom=True,
    ),
    Column("dtypes", np.uint32, "JSON, a list of strings.", str, seldom=True),
    Column("module", np.uint32, "The path of the nn.Module that the range is a call of.", str),
    Column("error", np.uint32, "``<exception type>: <message>`` of what the range was left by.", str, seldom=True),
    Column("node_id", np.int64, "The process's node in a distributed run; -1 where there is none.", empty=-1, seldom=True),
    Column("profiler", np.uint32, "The profiler run that the thread worked for; 0 where there was none.", seldom=True),
    Column("flops", np.int64, "Floating point operations; 0 where nobody asked or PyTorch doesn't count them.", seldom=True),
    Column("stack", np.uint32, "One ``file(line): function`` a line, innermost first.", str, seldom=True),
    Column("nbytes", np.int64, "Of a row of EventKind.MEMORY: what was allocated; negative: freed.", seldom=True),
    Column("device", np.uint32, "Of a row of EventKind.MEMORY: where, ``cpu`` or ``cuda:0``.", str, seldom=True),
    Column(
        "caller",
        np.uint64,
        "Event id of the innermost traced Python call that was open in the thread when it began; 0 where there was none.",
        seldom=True,
    ),
    Column("step_number", np.int64, "Of a step: its number; -1 where the range is none.", empty=-1, seldom=True),
    Column("stacktrace", np.uint32, "Where the exception was raised that the range was left by.", str, seldom=True),
    Column("code", np.uint32, "What it is a call of, where that is known: ``file(line): function``.", str, seldom=True),
    Column(
        "call_site",
        np.uint32,
        "Of a Python call, where asked for: the line that called, ``file(line): function``.",
        str,
        seldom=True,
    ),
    Column(
        "concrete_inputs",
        np.uint32,
        'JSON, a string per input, as torch.profiler writes numbers and short lists of them: ``["","1","[2, 3]","True"]``.',
        str,
        seldom=True,
    ),
    Column(
        "words",
        np.uint32,
        'JSON, by place: the words among the inputs of an operator that FLOPs are counted of by them: ``{"4":"same"}``.',
        str,
        seldom=True,
    ),
)

COLUMN_TYPES: dict[str, type[np.generic]] = {column.name: column.dtype for column in COLUMNS}
ROW_BYTES = sum([np.dtype(dtype).itemsize for dtype in COLUMN_TYPES.values()])
TEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.value is str)
TRACK_COLUMNS = tuple(column.name for column in COLUMNS if column.value is Track)
CONTEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.value is SpanContextRef)
ANNOUNCED_COLUMNS = tuple(column.name for column in COLUMNS if column.announced)
