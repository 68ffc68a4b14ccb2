"""What events are: kinds, flags, sources and scopes, and the layout of their ids.

Event id, 64 bits (it stays below 2**63, so that it fits an OTLP int attribute):

    63 62          40 39                         0
    +-+--------------+---------------------------+
    |0| thread number|  n-th begin of the thread |
    +-+--------------+---------------------------+

The thread number counts the threads that recorded something, from 1, and is never reused; it is the recorder's own and
not RecordFunction's logical thread id. Zero means "no event".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from otel_recfn.model.errors import SettingError

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
    IN_COMPILATION = 512
    """``torch.compile`` ran it while it compiled, mostly with tensors that have no data: no span tells of it alone."""


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
    """Who said begin and end; ``SOURCES`` says what differs between them."""

    TORCH = 0
    RECORD_FUNCTION = 1
    MODULE = 2
    STEP = 3
    PYTHON_CALL = 4
    COMPILATION = 5


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


class RecordScope(IntEnum):
    """What kind of range a RecordFunction announces. The values are PyTorch's (source: ``at::RecordScope``)."""

    FUNCTION = 0
    BACKWARD_FUNCTION = 1
    TORCHSCRIPT_FUNCTION = 2
    KERNEL_FUNCTION_DTYPE = 3
    CUSTOM_CLASS = 4
    BUILD_FEATURE = 5
    LITE_INTERPRETER = 6
    USER_SCOPE = 7
    STATIC_RUNTIME_OP = 8
    STATIC_RUNTIME_MODEL = 9


NUM_SCOPES = len(RecordScope)
ALL_SCOPES_MASK = (1 << NUM_SCOPES) - 1


def scopes_mask(scopes: Iterable[RecordScope] | None) -> int:
    """A bit per scope, bit n for value n. None and the empty set mean every scope.

    Raises:
        SettingError: not an iterable of RecordScope.
    """
    try:
        mask = sum({1 << RecordScope(scope) for scope in scopes or ()})
    except (TypeError, ValueError):
        allowed = ", ".join(member.name for member in RecordScope)
        raise SettingError(f"scopes={scopes!r} is not allowed; allowed: None or a set of RecordScope: {allowed}") from None
    return mask or ALL_SCOPES_MASK


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """Of the rows of a source."""

    by_scope: bool = True
    """Scopes select them. Else a capture asks for all of them or for none, and their scope is just said."""
    call_prefix: str | None = None
    """What names of calls of Python code begin with, before what is called; None: the source announces no such calls."""
    trace_name: str = ""
    """What a trace of our own is called that begins with one of them; empty: after its thread. ``{}`` stands for the name after
    ``call_prefix``."""
    begins_traces: bool = False
    """Each of its ranges at top level, but an optimizer's step, begins a trace, which is called after it."""


SOURCES: dict[int, SourceTraits] = {
    EventSource.TORCH: SourceTraits(),
    EventSource.RECORD_FUNCTION: SourceTraits(),
    EventSource.MODULE: SourceTraits(
        by_scope=False, call_prefix="nn.Module: ", trace_name="module call: {}", begins_traces=True
    ),
    EventSource.STEP: SourceTraits(by_scope=False, trace_name="{}", begins_traces=True),
    EventSource.PYTHON_CALL: SourceTraits(by_scope=False, call_prefix=""),
    EventSource.COMPILATION: SourceTraits(),
}

OPTIMIZER, OPTIMIZER_STEP = "Optimizer.", "Optimizer.step#"
"""How the names of ranges begin in which optimizers work (``zero_grad``, too), and in which they step."""

UNNAMED_STEP = "step"
"""What a step is called that the program gave no name."""

SOURCES_WITHOUT_SCOPES = frozenset(source for source, traits in SOURCES.items() if not traits.by_scope)


def is_call(source: int, name: str) -> bool:
    """Whether a range of that source and name is a call of Python code."""
    prefix = SOURCES[source].call_prefix
    return prefix is not None and name.startswith(prefix)


def trace_name(source: int, name: str) -> str:
    """What a trace of our own is called that begins with a range of that source and name; empty: after its thread."""
    traits = SOURCES[source]
    return traits.trace_name.format(name.removeprefix(traits.call_prefix or ""))


CPU_TIME, WAIT_TIME = "recfn.cpu_time_ns", "recfn.unit.wait_time_ns"
"""Attributes of spans: what a thread worked in it, and what it waited where that is most of it."""
LEAST_WAIT_NS = 1_000_000


def wait_time_ns(duration_ns: int, cpu_time_ns: int) -> int:
    """What is told of waiting in so long a time: 0 where it isn't most of it, or where the CPU time isn't known (-1)."""
    waited_ns = duration_ns - cpu_time_ns
    return waited_ns if cpu_time_ns >= 0 and waited_ns >= LEAST_WAIT_NS and 2 * waited_ns > duration_ns else 0
