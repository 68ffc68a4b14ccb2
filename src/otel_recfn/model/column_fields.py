"""The columns as attributes. Written by scripts/generate_model.py; change model/columns.py and run it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.columns import SpanContextRef, Track
from otel_recfn.model.events import EventFlag, EventKind, EventSource, RecordScope


@dataclass(frozen=True, eq=False)
class ColumnArrays:
    """A batch's columns."""

    event_id: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    name: NDArray[np.uint32]
    scope: NDArray[np.uint8]
    source: NDArray[np.uint8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    end_thread: NDArray[np.uint32]
    sequence_nr: NDArray[np.int64]
    forward_thread_id: NDArray[np.uint64]
    handle: NDArray[np.uint64]
    parent: NDArray[np.uint64]
    root: NDArray[np.uint64]
    context: NDArray[np.uint32]
    debug_handle: NDArray[np.int64]
    flags: NDArray[np.uint32]
    shapes: NDArray[np.uint32]
    dtypes: NDArray[np.uint32]
    module: NDArray[np.uint32]
    error: NDArray[np.uint32]
    node_id: NDArray[np.int64]
    profiler: NDArray[np.uint32]
    flops: NDArray[np.int64]
    stack: NDArray[np.uint32]
    nbytes: NDArray[np.int64]
    device: NDArray[np.uint32]
    caller: NDArray[np.uint64]
    step_number: NDArray[np.int64]
    stacktrace: NDArray[np.uint32]
    code: NDArray[np.uint32]
    call_site: NDArray[np.uint32]
    concrete_inputs: NDArray[np.uint32]
    words: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """What a row says in each of them, with every index resolved."""

    event_id: int
    """Unique in the process; the same in spans, Chrome traces and the legacy profiler."""
    kind: EventKind
    """What the row is."""
    name: str
    """As PyTorch or the program reports it."""
    scope: RecordScope
    """What kind of range PyTorch announces."""
    source: EventSource
    """Who said begin and end."""
    start_ns: int
    """Unix nanoseconds."""
    end_ns: int
    """Unix nanoseconds; a mark and a change of memory end when they start."""
    thread: Track
    """The track that began it: a thread, mostly."""
    end_thread: Track
    """The track that ended it."""
    sequence_nr: int
    """The same for a forward operator and its backward node; -1 where there is none."""
    forward_thread_id: int
    """RecordFunction's id of the forward operator's thread; 0 where there is none."""
    handle: int
    """RecordFunction's handle of the range."""
    parent: int
    """Event id of the enclosing range; 0 at top level."""
    root: int
    """Event id of the outermost enclosing range, the row's own at top level."""
    context: SpanContextRef
    """The span that was current when the row's outermost range began."""
    debug_handle: int
    """PyTorch's debug handle; -1 where there is none."""
    flags: EventFlag
    """EventFlag bits."""
    shapes: str
    """JSON, a shape per input: ``[[2,3],[]]``; a scalar is ``[]``, a tensor list a list of shapes."""
    dtypes: str
    """JSON, a list of strings."""
    module: str
    """The path of the nn.Module that the range is a call of."""
    error: str
    """``<exception type>: <message>`` of what the range was left by."""
    node_id: int
    """The process's node in a distributed run; -1 where there is none."""
    profiler: int
    """The profiler run that the thread worked for; 0 where there was none."""
    flops: int
    """Floating point operations; 0 where nobody asked or PyTorch doesn't count them."""
    stack: str
    """One ``file(line): function`` a line, innermost first."""
    nbytes: int
    """Of a row of EventKind.MEMORY: what was allocated; negative: freed."""
    device: str
    """Of a row of EventKind.MEMORY: where, ``cpu`` or ``cuda:0``."""
    caller: int
    """Event id of the innermost traced Python call that was open in the thread when it began; 0 where there was none."""
    step_number: int
    """Of a step: its number; -1 where the range is none."""
    stacktrace: str
    """Where the exception was raised that the range was left by."""
    code: str
    """What it is a call of, where that is known: ``file(line): function``."""
    call_site: str
    """Of a Python call, where asked for: the line that called, ``file(line): function``."""
    concrete_inputs: str
    """JSON, a string per input, as torch.profiler writes numbers and short lists of them: ``["","1","[2, 3]","True"]``."""
    words: str
    """JSON, by place: the words among the inputs of an operator that FLOPs are counted of by them: ``{"4":"same"}``."""
