"""``with batch(contexts):``, one forward for many requests.

    a request  ──► what it hands over: a Context, a span or a SpanContext ──► Request, Link
    the batch  ──► a step (``steps.py``) without a number, whose span links to the requests
               ──► RequestBatch ──► the sink of spans, which makes a span below each request's

Below the step is what runs in the block, as below any other. What the sink is told it keeps until
the step's unit is finished, whose sums the requests' spans have, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext

from otel_recfn.sources.steps import StepBlock, exposed_steps, is_suppressed, open_step
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.request_batch import Request, RequestBatch

UNNAMED_BATCH = "batch"
"""The name of a batch to which the program gave none."""
_Ids = tuple[int, int]


class batch(StepBlock):
    """One forward that serves many requests.

        with batch([request.context for request in requests]):  # also `async with`
            outputs = model(inputs)

    If a tracer provider takes spans, the block is a span with a link to each request, and each
    sampled request gets a span of the same name and times below its own. The block's span is a
    child of the current span, or the root of a trace; operations that run in the block are below
    it. In Chrome traces and profiles the block is a range. An object may be entered again.

    Args:
        contexts: what each request handed over: an OpenTelemetry ``Context`` (``get_current()``,
            or the result of ``propagate.extract``), a span, or a ``SpanContext``. Anything else,
            such as None, is a request without a trace: it only counts.
        name: the name of the spans. Default: ``batch``.

    Raises:
        TypeError: ``contexts`` can't be iterated over, or is a single context; ``name`` is not a
            str.
    """

    __module__ = "otel_recfn"
    __slots__ = ("contexts", "name")

    def __init__(
        self, contexts: Iterable[Context | Span | SpanContext | None], name: str = UNNAMED_BATCH
    ) -> None:
        super().__init__()
        if not _are_several(contexts):
            raise TypeError(
                "batch takes the contexts of its requests, one of each, not one"
                f" {type(contexts).__name__}: write batch([context, ...])"
            )
        if not isinstance(name, str):
            raise TypeError(
                f"batch takes a name, a str, not {type(name).__name__}: write batch(contexts,"
                ' "forward")'
            )
        self.contexts = tuple(contexts)  # now, as an iterator gives them once
        self.name = name

    def _enter(self, flags: int) -> None:
        requests = None
        if exposed_steps.start_span is not None:
            requests = _request_batch(self.name, self.contexts)
        opened = open_step(self.name, flags, requests=requests)
        if opened is not None:
            self._open.append(opened)

    def __repr__(self) -> str:
        return f"batch({len(self.contexts)} contexts, {self.name!r})"


def _are_several(contexts: object) -> bool:
    """Whether it can be iterated over and isn't a single context, as a span context can, too."""
    if isinstance(contexts, (Context, Span, SpanContext, str)):
        return False
    try:
        iter(contexts)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _request_batch(name: str, contexts: Sequence[object]) -> RequestBatch:
    """The requests that these contexts stand for.

    One that is given twice counts twice, and has one span and one link. The parent of the batch's
    span gets no link: of two references to one span, backends show one.
    """
    parent = _request(trace.get_current_span(), 0)
    links = dict[_Ids, Link]()
    requests = dict[_Ids, Request]()
    for position, given in enumerate(contexts):
        found = _request(given, position)
        if found is None:
            continue
        ids = _ids(found.span)
        if parent is None or ids != _ids(parent.span):
            links.setdefault(ids, Link(found.span))
        if found.span.trace_flags.sampled and not _suppresses(given):
            requests.setdefault(ids, found)
    return RequestBatch(name, len(contexts), [*links.values()], [*requests.values()])


def _request(given: object, position: int) -> Request | None:
    """The request that handed this over; None if that has no valid span."""
    try:
        span: Any = trace.get_current_span(given) if isinstance(given, Context) else given
        context = span if isinstance(span, SpanContext) else span.get_span_context()
        if not isinstance(context, SpanContext) or not context.is_valid:
            return None
        start_ns = getattr(span, "start_time", None)
    except Exception as error:  # anything that the program handed over, or its own class of spans
        if raised_by_signal_handler(error):
            raise
        return None
    return Request(context, position, start_ns if type(start_ns) is int else None)


def _suppresses(given: object) -> bool:
    return isinstance(given, Context) and is_suppressed(given)


def _ids(context: SpanContext) -> _Ids:
    return context.trace_id, context.span_id
