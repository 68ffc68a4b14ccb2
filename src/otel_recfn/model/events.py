"""Kinds, flags and sources of an event, and the layout of its id.

Event id, 64 bits (it stays below 2**63, so that it fits an OTLP int attribute):

    63 62          40 39                         0
    +-+--------------+---------------------------+
    |0| thread number|  n-th begin of the thread |
    +-+--------------+---------------------------+

The thread number counts the threads that recorded something, from 1, and is never reused; it is the recorder's own and
not RecordFunction's logical thread id. Zero means "no event".
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

ORDINAL_BITS = 40
ORDINAL_MASK = (1 << ORDINAL_BITS) - 1


class EventKind(IntEnum):
    """What a row of a batch is."""

    RANGE = 0
    MARK = 1
    MEMORY = 2


class EventFlag(IntFlag):
    """Bits of the ``flags`` column."""

    NONE = 0
    ASYNC = 1
    ERROR = 2
    STATIC_RUNTIME_OUT_VARIANT = 4
    NCCL_META = 8
    PARTIAL = 16
    """The range was still open when its capture ended; ``end_ns`` is that moment."""
    CLOCK_JUMPED = 32
    """The wall clock was set by over a second while the range was open: both its times are of the clock before that."""
    SHOWN = 64
    """The program saw the range's span as the current one, so that spans of its own may be its children."""
    EVALUATION = 128
    """A module call that is no part of training, as a validation loop's (``pytorch/evaluation.py``). Known at the begin."""
    CROSSING = 256
    """It isn't asynchronous, but ended on another thread, or while what began in it was still open there: it doesn't nest."""


OVERLAPPING = int(EventFlag.ASYNC | EventFlag.CROSSING)
"""A row with one of these may overlap what is beside it in its thread."""


class Extra(IntFlag):
    """What is recorded only when somebody asks for it, because it makes every operator slower."""

    NONE = 0
    SHAPES = 1
    """Shapes and dtypes of inputs."""
    FLOPS = 2
    """Floating point operations of the operators that PyTorch counts."""
    STACK = 4
    """The Python call stack, or TorchScript's."""
    MEMORY = 8
    """Memory that PyTorch allocates and frees."""


class EventSource(IntEnum):
    """Who said begin and end; ``sources.py`` says what differs between them."""

    TORCH = 0
    RECORD_FUNCTION = 1
    MODULE = 2
    STEP = 3
    PYTHON_CALL = 4


class TrackKind(IntEnum):
    """What events happen on, one after the other."""

    THREAD = 0
    STREAM = 1
    """A queue of a device, which no thread runs: a CUDA stream, for instance."""


class ContextFlag(IntFlag):
    """Bits of a context's ``flags``."""

    NONE = 0
    SAMPLED = 1
    SUPPRESSED = 2
    """Instrumentation is suppressed in this context: no spans."""
    STEP = 4
    """The span is a step's own: the step's range, which is the outermost one in this context, gets no other."""


def make_event_id(thread_number: int, ordinal: int) -> int:
    """The id of a thread's ``ordinal``-th begin."""
    return (thread_number << ORDINAL_BITS) | ordinal
