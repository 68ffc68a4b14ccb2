"""The kinds, flags, sources and scopes of events, the layout of their ids, and the numbers that
they hold.

Event id, 64 bits (it stays below 2**63, so that it fits an OTLP int attribute):

    63 62          40 39                         0
    +-+--------------+---------------------------+
    |0| thread number|  n-th begin of the thread |
    +-+--------------+---------------------------+

The thread number counts the threads that recorded something, from 1, and is never reused; it is the
recorder's own and not RecordFunction's logical thread id. Zero means "no event".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from operator import index
from typing import SupportsIndex

from otel_recfn.errors import SettingError

ORDINAL_BITS = 40
ORDINAL_MASK = (1 << ORDINAL_BITS) - 1
INT64 = range(-(1 << 63), 1 << 63)
UINT32 = range(1 << 32)
UINT64 = range(1 << 64)


class RowKind(IntEnum):
    """The kind of a row."""

    RANGE = 0
    MARK = 1
    MEMORY = 2


class EventFlag(IntFlag):
    """The bits of the ``flags`` column."""

    NONE = 0
    ASYNC = 1
    ERROR = 2
    STATIC_RUNTIME_OUT_VARIANT = 4
    NCCL_META = 8
    PARTIAL = 16
    """The range was still open when its capture ended; ``end_ns`` is that moment."""
    EXPOSED = 64
    """The program saw the range's span as the current one, so that spans of its own may be its
    children.
    """
    EVALUATION = 128
    """A module call that is no part of training, as a validation loop's
    (``pytorch/training.py``).

    Known at the begin.
    """
    CROSSING = 256
    """A range that doesn't nest: not asynchronous, but ended on another thread, or before a
    range that began in it.
    """
    IN_COMPILATION = 512
    """A range that ``torch.compile`` ran while it compiled, mostly with tensors without data: it
    has no span of its own.
    """
    PARENT_ELSEWHERE = 1024
    """Its parent isn't the innermost range that was open in its thread as it began, which is what
    times show: another task of the thread is in that one, or the thread works for another one.
    """
    BEGINS_STEP = 2048
    """An outermost range with which a training step began that nobody marked, as far as was
    known then.
    """


OVERLAPPING = int(EventFlag.ASYNC | EventFlag.CROSSING)
"""The flags of rows that may overlap others in their thread."""


class Extra(IntFlag):
    """What is recorded only on request. All but SAMPLES make every operator slower."""

    NONE = 0
    SHAPES = 1
    """Shapes and dtypes of inputs."""
    FLOPS = 2
    """Floating point operations of the operators that PyTorch counts."""
    STACK = 4
    """The Python call stack, or TorchScript's."""
    MEMORY = 8
    """Memory that PyTorch allocates and frees."""
    SAMPLES = 16
    """What threads run in Python while they record nothing."""


class EventSource(IntEnum):
    """The source of a begin and an end; ``SOURCES`` has what differs between them."""

    TORCH = 0
    RECORD_FUNCTION = 1
    MODULE = 2
    STEP = 3
    PYTHON_CALL = 4
    COMPILATION = 5


class ContextFlag(IntFlag):
    """The bits of a context's ``flags``."""

    NONE = 0
    SAMPLED = 1
    SUPPRESSED = 2
    """Instrumentation is suppressed in this context: no spans."""
    STEP = 4
    """The span is a step's own, so the step's range, the outermost one in this context, gets no
    other.
    """


def make_event_id(thread_number: int, ordinal: int) -> int:
    """The id of a thread's ``ordinal``-th begin."""
    return (thread_number << ORDINAL_BITS) | ordinal


class RecordScope(IntEnum):
    """The scope of a RecordFunction, which says what kind of range it is: PyTorch's
    ``at::RecordScope`` with the same values.
    """

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
    """The bits of scopes, bit n for value n. None and the empty set mean every scope.

    Raises:
        SettingError: not an iterable of RecordScope.
    """
    try:
        mask = sum({1 << RecordScope(scope) for scope in scopes or ()})
    except (TypeError, ValueError):
        allowed = ", ".join(member.name for member in RecordScope)
        raise SettingError(
            f"scopes={scopes!r} is not allowed; allowed: None or a set of RecordScope: {allowed}"
        ) from None
    return mask or ALL_SCOPES_MASK


class DebugInfoKind(IntEnum):
    """The slots of a thread's debug info."""

    PRODUCER_INFO = 0
    MOBILE_RUNTIME_INFO = 1
    PROFILER_STATE = 2
    INFERENCE_CONTEXT = 3
    PARAM_COMMS_INFO = 4
    TEST_INFO = 5
    TEST_INFO_2 = 6


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """The traits of a source's rows."""

    by_scope: bool = True
    """Whether scopes select them. If not, a capture asks for all of them or for none."""
    call_prefix: str | None = None
    """The prefix of names of calls of Python code, before what is called; None if the source
    announces no such calls.
    """
    trace_name: str = ""
    """The name of a trace that we start with such a range; empty: its thread's.

    ``{}``: the name after ``call_prefix``, without the number of an instance.
    """
    begins_traces: bool = False
    """Whether each of its ranges at top level starts a trace, which is named after it."""


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
"""The prefixes of names of ranges in which optimizers work (``zero_grad``, too), and in which
they step.
"""

SCALED_STEP = f"{OPTIMIZER_STEP}GradScaler.step"
"""The name of ranges in which a GradScaler has an optimizer step, or skips that: a training step
ends with it either way.
"""

PROFILER_STEP = "ProfilerStep#"
"""The prefix of names of steps that a profiler marks."""

NODES_PREFIX = "autograd::engine::evaluate_function: "
"""The words that PyTorch puts before a backward node's name where it names the range around it."""

IDLE_NS = 1_000_000_000
"""The time without a range after which a thread's training step, or another trace that we
started for it, is over.
"""
SHORT_IDLE_NS = IDLE_NS // 10
"""The same for what began as neither training nor a call."""

MAX_TRACE_RANGES = 100_000
"""The most outermost ranges of a trace that we started."""
LONGEST_TRACE_NS = 10 * IDLE_NS
"""The longest trace that we started and that is neither a training step nor a call: its ranges
are sent when it ends.
"""

UNNAMED_STEP = "step"
"""The name of a step to which the program gave none."""

SOURCES_WITHOUT_SCOPES = frozenset(
    source for source, traits in SOURCES.items() if not traits.by_scope
)


def is_call(source: int, name: str) -> bool:
    """Whether a range of that source and name is a call of Python code."""
    prefix = SOURCES[source].call_prefix
    return prefix is not None and name.startswith(prefix)


INSTANCE = re.compile(r"_\d+$")
"""The number of an instance, at the end of a module call's name."""


def trace_name(source: int, name: str) -> str:
    """The name of a trace that we start with a range of that source and name; empty: that of its
    thread.
    """
    traits = SOURCES[source]
    if not is_call(source, name):
        return traits.trace_name.format(name)
    called = name.removeprefix(traits.call_prefix or "")
    return traits.trace_name.format(INSTANCE.sub("", called))


def whole_number(value: SupportsIndex, name: str, allowed: range) -> int:
    """``value`` as an int.

    Raises:
        SettingError: no whole number, as True is none, or not an allowed one.
    """
    try:
        number = index(value)
    except TypeError:
        number = allowed[0] - 1
    if isinstance(value, bool) or number not in allowed:
        raise SettingError(
            f"{name}={value!r} is not allowed; allowed: a whole number from {allowed[0]} to"
            f" {allowed[-1]}"
        )
    return number


STEP_NUMBER = "recfn.step.number"
"""An attribute of spans, and an argument in Chrome traces: the number of a step."""
PARTIAL = "recfn.partial"
"""An attribute of spans: whether what they stand for was still open."""
CPU_TIME, WAIT_TIME = "recfn.cpu_time_ns", "recfn.unit.wait_time_ns"
"""Attributes of spans: the time that a thread worked in it, and the time that it waited, if that
is most of it.
"""
MIN_WAIT_NS = 1_000_000
"""A shorter time of waiting isn't reported."""
OTHER_PROCESSES = "other processes"
"""What a sampled thread waits for if these have the cores."""


def wait_time_ns(duration_ns: int, cpu_time_ns: int) -> int:
    """The time of waiting in a duration; 0 if it isn't most of it, or if the CPU time isn't
    known (-1).
    """
    waited_ns = duration_ns - cpu_time_ns
    return (
        waited_ns
        if cpu_time_ns >= 0 and waited_ns >= MIN_WAIT_NS and 2 * waited_ns > duration_ns
        else 0
    )
