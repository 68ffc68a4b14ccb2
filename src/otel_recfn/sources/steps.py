"""``with step("train", 3):``, by which programs mark their steps: a span and a range each.

    enter   span of the SDK ──► current ──► range of the recorder      leave   not current ──► end of the range ──► of the span

The span is one of the program's like any other: the provider's sampler is asked and its processors see it start, the program
can set attributes on it, and what runs in the step lies below it. The range is what local files and profiles have. Its context
says ContextFlag.STEP, by which the sink of spans knows that it has one already.

The span is shown as the current one, as ranges are (``range_spans.py``), and not attached: a generator that is left early is
closed by whoever drops it, in a task, thread or context that can't detach what another one has attached. So each task knows its
innermost step, and what was attached as that began. As long as that is still attached, the step's span is current in its place;
a step that has ended, wherever that was, is passed over in every task.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_recfn import _native
from otel_recfn.model.events import (
    CPU_TIME,
    UNNAMED_STEP,
    WAIT_TIME,
    EventFlag,
    EventSource,
    RecordScope,
    wait_time_ns,
    whole_number,
)
from otel_recfn.model.generation import Generation
from otel_recfn.recording.ranges import is_of_kind, maker, wrap
from otel_recfn.support.seen_spans import remember_current
from otel_recfn.support.signal_handlers import raised_by_signal_handler
from otel_recfn.support.texts import failure

log = logging.getLogger("otel_recfn")
F = TypeVar("F", bound=Callable[..., Any])

USER_SCOPE, SOURCE, ASYNC = int(RecordScope.USER_SCOPE), int(EventSource.STEP), int(EventFlag.ASYNC)
NUMBERS = range(1 << 63)
MOST_NAMES = 1024
"""The most names that are counted; beyond it the count of the one unused for longest is forgotten."""
SUPPRESSION_KEYS = tuple(
    key
    for key in (
        getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None),
        "suppress_instrumentation",
    )
    if key
)
"""Keys of a context that switch instrumentation off: those of OpenTelemetry's ``is_instrumentation_enabled``."""


class step:
    """A step of training, decoding or whatever the program does again and again.

        for number, batch in enumerate(loader):
            with step("train", number):  # also `async with`
                ...

        @step("decode")  # also on `async def`
        def decode(state): ...

    Where a provider takes spans, the step is a span, a child of the current one or a trace of its own, and all that runs in it
    lies below. In Chrome traces and profiles it is a range. One object may be entered again, also while it is open.

    Args:
        name: of the span, the same for each step of its kind. Default: ``step``.
        number: which step it is. Default: steps of a name are counted from 0.

    Raises:
        TypeError: ``name`` is no str.
        SettingError: ``number`` is no whole number from 0 to 2**63 - 1.
    """

    __module__ = "otel_recfn"
    __slots__ = ("_code", "_open", "name", "number")
    args = None
    """No arguments, as of ``record_function``."""

    def __init__(self, name: str | None = None, number: int | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(
                f'step takes a name, a str, not {type(name).__name__}: write step("train", number)'
            )
        self.name = UNNAMED_STEP if name is None else name
        self.number = None if number is None else whole_number(number, "number", NUMBERS)
        self._code = ""
        self._open: list[OpenStep] = []

    @classmethod
    def _of_code(cls, name: str, number: int | None, code: str) -> step:
        """A step that is a call of a decorated function."""
        made = cls(name, number)
        made._code = code
        return made

    def __enter__(self) -> step:
        self._enter(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the innermost step that this task entered with this object; else the newest that anybody entered."""
        if not self._open:
            return
        innermost = innermost_step()
        while innermost is not None and innermost not in self._open:
            innermost = innermost.outer
        left = self._open[-1] if innermost is None else innermost
        self._open.remove(left)
        left.close(error)

    async def __aenter__(self) -> step:
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
        number = next(_numbers(self.name)) if self.number is None else self.number
        start_span = shown_steps.start_span
        if start_span is None and not _native.recording():
            return
        around = otel_context.get_current()
        span = None
        if start_span is not None and not is_suppressed(around):
            span = start_span(self.name, number, self._code)
        opened = OpenStep(span, around)
        opened.begin(self.name, number, flags, self._code)
        self._open.append(opened)

    def __call__(self, func: F) -> F:
        if inspect.isclass(func) or not callable(func):
            raise TypeError(f"step decorates functions, not {func!r}")
        for predicate, statement in (
            (inspect.isgeneratorfunction, "with"),
            (inspect.isasyncgenfunction, "async with"),
        ):
            if is_of_kind(predicate, func):
                raise TypeError(
                    f"step decorates no generators, and {getattr(func, '__qualname__', func)} makes them: write "
                    f"`{statement} step({self.name!r}):` inside it, around all of it or around each item, or decorate it with "
                    f"record_function({self.name!r}), whose range encloses what the generator does and not its consumer"
                )
        return wrap(maker(type(self), self.name, self.number, func), func)

    def __reduce__(self) -> tuple[Any, ...]:
        """A step that is not open, as its copy and its pickle."""
        return type(self), (self.name, self.number)

    def __repr__(self) -> str:
        return f"step({self.name!r}, {self.number!r})"


@functools.lru_cache(MOST_NAMES)
def _numbers(_name: str) -> itertools.count[int]:
    return itertools.count()


# --- steps that are open


class ShownSteps:
    """The functions by which steps become spans."""

    start_span: Callable[[str, int, str], trace.Span | None] | None = None
    """The function ``ShownRanges.start_step``; None if steps become no spans."""
    attached: Callable[[], Context] = staticmethod(otel_context.get_current)
    """The context that is attached in the calling task, without what is shown in its place."""


shown_steps = ShownSteps()
"""The process's, set by the capture that makes spans."""


class OpenStep:
    """A step that was entered in the calling task, with its span, or None if nothing takes spans."""

    __slots__ = (
        "attached",
        "began_ns",
        "begins",
        "ended",
        "entered",
        "event_id",
        "generation",
        "outer",
        "seen",
        "span",
    )

    def __init__(self, span: trace.Span | None, around: Context) -> None:
        self.span, self.outer = span, innermost_step()
        self.begins = self.ended = False
        """Whether its range is about to begin."""
        self.attached: Context | None = None
        """The context that was attached when it was entered, in whose place ``seen`` is current; None if it has no span."""
        self.seen = around
        self.event_id = self.began_ns = 0
        self.entered: Any = None
        """The result of ``_native.enter``."""
        self.generation: Generation | None = None
        """The generation in the step, if there is one."""
        if span is not None:
            self.seen, self.attached = (
                trace.set_span_in_context(span, around),
                shown_steps.attached(),
            )
            _native.span_attached(span, self)
            remember_current(span)
        _innermost.set(self)

    def begin(self, name: str, number: int, flags: int, code: str) -> None:
        """Begin the step's range. ``flags`` and ``code`` are as in ``_native.begin``."""
        self.begins = self.span is not None
        try:
            self.event_id = _native.begin(
                name, USER_SCOPE, SOURCE, flags=flags, step_number=number, code=code
            )
        finally:
            self.begins = False
        if flags & ASYNC and self.event_id:
            self.entered = _native.enter(self.event_id)
        self.began_ns = time.perf_counter_ns()
        _native.context_attached(
            object()
        )  # what it read holds for no other begin, since another thread may end the step
        if self.span is not None and self.event_id:
            self.span.set_attribute("recfn.event_id", self.event_id)

    def close(self, error: BaseException | None) -> None:
        """End the step, in whatever task or thread."""
        self.ended = True
        if _innermost.get() is self:
            _innermost.set(innermost_step())
        if self.entered is not None:
            _native.leave(self.entered)
        text, stacktrace = failure(error)
        duration_ns = time.perf_counter_ns() - self.began_ns
        cpu_time_ns = _native.end(self.event_id, text, stacktrace=stacktrace)
        if self.span is not None:
            _native.span_detached(self)
            if cpu_time_ns >= 0:
                self.span.set_attribute(CPU_TIME, cpu_time_ns)
            if waited_ns := wait_time_ns(duration_ns, cpu_time_ns):
                self.span.set_attribute(WAIT_TIME, waited_ns)
            if self.generation is not None:
                self.span.set_attributes(self.generation.attributes(time.time_ns() - duration_ns))
            _end_span(self.span, error, text)


def _end_span(span: trace.Span, error: BaseException | None, text: str) -> None:
    """End the span. ``text`` is that of the failure; empty if there is none."""
    try:
        if text:
            if isinstance(error, Exception):
                span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, text)
        span.end()
    except Exception as raised:
        if raised_by_signal_handler(raised):
            raise
        _log_once()


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


def seen_in_step(attached: Context) -> Context:
    """The current context of the calling task, with the span of a step that was entered since ``attached`` was attached."""
    opened = _innermost.get()
    while opened is not None:
        if opened.attached is attached and not opened.ended:
            return opened.seen
        opened = opened.outer
    return attached


def begins_now(span: object) -> bool:
    """Whether the range that begins in the calling task now is that of the step whose span is ``span``."""
    innermost = _innermost.get()
    return innermost is not None and innermost.begins and innermost.span is span


def is_suppressed(context: Context) -> bool:
    """Whether the context switches instrumentation off."""
    return any(context.get(key) for key in SUPPRESSION_KEYS)
