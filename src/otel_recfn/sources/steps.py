"""``with step("train", 3):``, by which programs mark their steps: a span and a range each.

    enter   span of the SDK ──► current ──► range of the recorder
    leave   not current ──► end of the range ──► end of the span

The span is one of the program's like any other: the provider's sampler is asked and its processors
see it start (with ``span_exporter`` none does), the program can set attributes on it, and what runs
in the step lies below it. The range is what local files and profiles have. Its context says
ContextFlag.STEP, by which the sink of spans knows that it has one already. Both begin in the same
nanosecond, which is read from the recorder's clock before the span is made, and end in the same
one.

The span is shown as the current one, as ranges are (``range_spans.py``), and not attached: a
generator that is left early is closed by whoever drops it, in a task, thread or context that can't
detach what another one has attached. So the span stands in the task's chain
(``native/parents/tasks``), with what was attached as the step began. As long as that is still
attached, the step's span is current in its place; a step that has ended, wherever that was, is
passed over in every task.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_recfn import _native
from otel_recfn.model.events import (
    CPU_TIME,
    PARTIAL,
    UNNAMED_STEP,
    EventFlag,
    EventSource,
    RecordScope,
    whole_number,
)
from otel_recfn.model.generation import Generation, GenerationStart
from otel_recfn.recording.ranges import is_kind, maker, wrap
from otel_recfn.support.exceptions import exception_attributes, failure, stacktrace_attributes
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log
from otel_recfn.support.request_batch import BATCH_SIZE, RequestBatch

F = TypeVar("F", bound=Callable[..., Any])
Block = TypeVar("Block", bound="StepBlock")

USER_SCOPE = int(RecordScope.USER_SCOPE)
SOURCE = int(EventSource.STEP)
ASYNC = int(EventFlag.ASYNC)
NUMBERS = range(1 << 63)
MAX_NAMES = 1024
"""The most names that are counted; beyond it the count of the one unused for longest is
forgotten.
"""
SUPPRESSION_KEYS = tuple(
    key
    for key in (
        getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None),
        "suppress_instrumentation",
    )
    if key
)
"""Keys of a context that switch instrumentation off: those of OpenTelemetry's
``is_instrumentation_enabled``.
"""


class StepBlock:
    """A block of the program's that is a step each time it is entered."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[OpenStep] = []

    def __enter__(self: Block) -> Block:
        self._enter(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the innermost step that this task entered with this object, or, if there is none,
        the newest that another task entered with it.
        """
        if not self._open:
            return
        innermost = innermost_step()
        while innermost is not None and innermost not in self._open:
            innermost = innermost.outer
        step = self._open[-1] if innermost is None else innermost
        self._open.remove(step)
        step.close(error)

    async def __aenter__(self: Block) -> Block:
        self._enter(ASYNC)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _enter(self, flags: int) -> None:
        """Open a step, if anything records, and put it into ``_open``."""
        raise NotImplementedError


class step(StepBlock):
    """One step of a loop, such as training or decoding.

        for number, batch in enumerate(loader):
            with step("train", number):  # also `async with`
                ...

        @step("decode")  # also on `async def`
        def decode(state): ...

    If a tracer provider takes spans, the step is a span: a child of the current span, or of that in
    which the process was started, or the root of a trace. Operations that run in the step are below
    it. In Chrome traces and profiles the step is a range. An object may be entered again, also
    while it is open.

    Args:
        name: the span's name, the same for each step of the loop. Default: ``step``.
        number: the step's number. Default: the steps of a name are counted from 0.

    Raises:
        TypeError: ``name`` is not a str.
        SettingError: ``number`` is not a whole number from 0 to 2**63 - 1.
    """

    __module__ = "otel_recfn"
    __slots__ = ("_code", "name", "number")
    args = None
    """None, for code that reads ``args`` of a ``record_function``: a step has no arguments."""

    def __init__(self, name: str | None = None, number: int | None = None) -> None:
        super().__init__()
        if name is not None and not isinstance(name, str):
            raise TypeError(
                f'step takes a name, a str, not {type(name).__name__}: write step("train", number)'
            )
        self.name = UNNAMED_STEP if name is None else name
        self.number = None if number is None else whole_number(number, "number", NUMBERS)
        self._code = ""

    @classmethod
    def _with_code(cls, name: str, number: int | None, code: str) -> step:
        """A step that is a call of a decorated function."""
        made = cls(name, number)
        made._code = code
        return made

    def _enter(self, flags: int) -> None:
        number = next(_numbers(self.name)) if self.number is None else self.number
        opened = open_step(self.name, flags, number, self._code)
        if opened is not None:
            self._open.append(opened)

    def __call__(self, func: F) -> F:
        if inspect.isclass(func) or not callable(func):
            raise TypeError(f"step decorates functions, not {func!r}")
        for predicate, statement in (
            (inspect.isgeneratorfunction, "with"),
            (inspect.isasyncgenfunction, "async with"),
        ):
            if is_kind(predicate, func):
                raise TypeError(
                    f"step decorates no generators, and {getattr(func, '__qualname__', func)} makes"
                    f" them: write `{statement} step({self.name!r}):` inside it, around all of it"
                    f" or around each item, or decorate it with record_function({self.name!r}),"
                    " whose range encloses what the generator does and not its consumer"
                )
        return wrap(maker(type(self), self.name, self.number, func), func)

    def __reduce__(self) -> tuple[Any, ...]:
        """A step that is not open, as its copy and its pickle."""
        return type(self), (self.name, self.number)

    def __repr__(self) -> str:
        return f"step({self.name!r}, {self.number!r})"


@functools.lru_cache(MAX_NAMES)
def _numbers(_name: str) -> itertools.count[int]:
    return itertools.count()


# --- steps that are open


StartStep = Callable[[str, int, str, int, RequestBatch | None], trace.Span | None]
"""The type of ``ExposedRanges.start_step``."""


class ExposedSteps:
    """The functions by which steps become spans."""

    start_span: StartStep | None = None
    """The function ``ExposedRanges.start_step``; None if steps become no spans."""
    attached: Callable[[], Context] = staticmethod(otel_context.get_current)
    """The context that is attached in the calling task, without what is shown in its place."""


exposed_steps = ExposedSteps()
"""The process's, set by the capture that makes spans."""


def open_step(
    name: str, flags: int, number: int = -1, code: str = "", requests: RequestBatch | None = None
) -> OpenStep | None:
    """Enter a step in the calling task; None if nothing records.

    Args:
        name: of its span and range.
        flags: its EventFlag bits.
        number: -1 for none.
        code: what it is a call of, as ``_native.begin`` takes it; empty if it is none.
        requests: those that it serves, if it is a batch that may get a span.
    """
    start_span = exposed_steps.start_span
    if start_span is None and not _native.recording():
        return None
    outer_context = otel_context.get_current()
    if start_span is None or is_suppressed(outer_context):
        opened = OpenStep(None, outer_context, 0, 0)
        opened.begin(name, number, flags, code, 0)
        return opened
    now = _native.moment()
    span = start_span(name, number, code, now.unix_ns, requests)
    opened = OpenStep(span, outer_context, now.monotonic_ns, now.unix_ns, requests)
    opened.begin(name, number, flags, code, now.ticks)
    return opened


class OpenStep:
    """A step that was entered in the calling task, with its span, or None if nothing takes
    spans.
    """

    __slots__ = (
        "__weakref__",
        "_unended",
        "_unix_ns",
        "began_ns",
        "begins",
        "ended",
        "entered",
        "event_id",
        "exposed",
        "generation",
        "outer",
        "requests",
        "span",
    )

    def __init__(
        self,
        span: trace.Span | None,
        outer_context: Context,
        monotonic_ns: int,
        unix_ns: int,
        requests: RequestBatch | None = None,
    ) -> None:
        self.began_ns, self._unix_ns = monotonic_ns, unix_ns
        """When it began, in monotonic and in Unix nanoseconds, if it may have a span."""
        self.span = span
        self.outer = innermost_step()
        self._unended = [span] if span is not None else []
        """The span until it is ended, by whoever takes it out."""
        self.requests = requests
        """The requests that it serves, if it is a batch."""
        self.begins = self.ended = False
        """Whether its range is about to begin."""
        self.exposed: Any = None
        """The result of ``_native.expose_step``; None if it has no span."""
        self.event_id = 0
        self.entered: Any = None
        """The result of ``_native.enter``."""
        self.generation: Generation | None = None
        """What was generated below its span, if anything was."""
        if span is not None:
            seen = trace.set_span_in_context(span, outer_context)
            self.exposed = _native.expose_step(span, exposed_steps.attached(), seen)
        if span is not None or requests is not None:
            _open_steps[id(self)] = self
        _native.set_context_variable(_innermost, self)

    def begin(self, name: str, number: int, flags: int, code: str, ticks: int) -> None:
        """Begin the step's range, at ``ticks``, or now if they are 0.

        ``flags`` and ``code`` are as in ``_native.begin``.
        """
        self.begins = self.span is not None
        try:
            self.event_id = _native.begin(
                name, USER_SCOPE, SOURCE, flags=flags, step_number=number, code=code, at=ticks
            )
        finally:
            self.begins = False
        if flags & ASYNC and self.event_id:
            self.entered = _native.enter(self.event_id)
        # What it read holds for no other begin, since another thread may end the step.
        _native.context_attached(object())
        if self.span is not None and self.event_id:
            self.span.set_attribute("recfn.event_id", self.event_id)
        if self.span is not None and self.requests is not None:
            self.span.set_attribute(BATCH_SIZE, self.requests.size)

    def close(self, error: BaseException | None) -> None:
        """End the step, in whatever task or thread."""
        self.ended = True
        if _innermost.get() is self:
            _native.set_context_variable(_innermost, innermost_step())
        if self.entered is not None:
            _native.leave(self.entered)
        text, stacktrace = failure(error)
        ticks = duration_ns = 0
        if self.began_ns:
            now = _native.moment()
            ticks = now.ticks
            duration_ns = now.monotonic_ns - self.began_ns
        cpu_time_ns = _native.end(self.event_id, text, stacktrace=stacktrace, at=ticks)
        if self.exposed is not None:
            _native.end_step(self.exposed)
        _open_steps.pop(id(self), None)
        end_ns = self._unix_ns + duration_ns
        # Before its span ends, because the sink takes it then.
        if self.requests is not None:
            self.requests.end(end_ns, text)
        for span in self._taken_span():
            if cpu_time_ns >= 0:
                span.set_attribute(CPU_TIME, cpu_time_ns)
            self._end_span(span, end_ns, text, stacktrace)

    def end_span_now(self) -> None:
        """End the span while the step goes on, since nobody will take it later."""
        end_ns = self._unix_ns + _native.moment().monotonic_ns - self.began_ns
        if self.requests is not None:
            self.requests.end(end_ns, is_partial=True)
        for span in self._taken_span():
            span.set_attribute(PARTIAL, True)
            self._end_span(span, end_ns)

    def add_token(self, number: int, end_ns: int, start: GenerationStart | None) -> None:
        """Add a call that decodes below its span, as ``Generation.add`` takes it.

        From any thread.
        """
        with _generating:
            self.generation = self.generation or Generation()
            self.generation.add(number, end_ns, start)

    def _end_span(
        self, span: trace.Span, end_ns: int, error: str = "", stacktrace: str = ""
    ) -> None:
        """End the span.

        ``error`` and ``stacktrace`` are those of the failure, as ``_native.end`` takes them.
        """
        try:
            if self.generation is not None:
                span.set_attributes(self.generation.attributes(self._unix_ns))
            if error:
                exception = exception_attributes(error)
                span.set_attribute("error.type", exception["exception.type"])
                span.add_event("exception", exception | stacktrace_attributes(stacktrace), end_ns)
                span.set_status(trace.StatusCode.ERROR, error)
            span.end(end_ns)
        except BaseException as raised:
            if raised_by_signal_handler(raised):
                raise
            _log_once()

    def _taken_span(self) -> list[trace.Span]:
        """The span, if nobody has ended it, and nobody else does now."""
        with suppress(IndexError):  # the one operation by which one thread alone gets it
            return [self._unended.pop()]
        return []


_generating = ForkSafeLock()
"""The lock for the generations of steps, in which several threads may decode."""
_open_steps: WeakValueDictionary[int, OpenStep] = WeakValueDictionary()
"""The steps that are open, with a span, or for requests that get one."""
around_forks(Order.THREAD_STATE, in_child=_open_steps.clear)  # the parent ends its own


def end_open_steps() -> None:
    """End the spans of all open steps, the innermost first, before the capture that makes spans
    ends.
    """
    steps = [opened for reference in _open_steps.valuerefs() if (opened := reference()) is not None]
    for opened in sorted(steps, key=lambda one: one.began_ns, reverse=True):
        opened.end_span_now()


@functools.cache
def _log_once() -> None:
    log.exception("a span processor raised as a step's span ended; this is logged once")


_innermost: ContextVar[OpenStep | None] = ContextVar("otel_recfn_step", default=None)
"""The step that the calling task has entered last, which may have ended."""


def innermost_step() -> OpenStep | None:
    """The innermost step that the calling task is in."""
    opened = _innermost.get()
    while opened is not None and opened.ended:
        opened = opened.outer
    return opened


def step_with_span(span: object) -> OpenStep | None:
    """The step of this span that the calling task is in; None if the span is no step's."""
    opened = innermost_step()
    while opened is not None and (opened.ended or opened.span is not span):
        opened = opened.outer
    return opened


def begins_now(span: object) -> bool:
    """Whether the range that begins in the calling task now is that of the step whose span is
    ``span``.
    """
    innermost = _innermost.get()
    return innermost is not None and innermost.begins and innermost.span is span


def is_suppressed(context: Context) -> bool:
    """Whether the context switches instrumentation off."""
    return any(context.get(key) for key in SUPPRESSION_KEYS)
