"""The mapping of a plan's rows to finished spans, field by field.

Building a span takes a few microseconds under the GIL, and the program waits meanwhile. So the loop
works on plain lists, makes each span context once in a call, and looks at seldom filled columns
only in rows that have something in them.

One invalid field makes the SDK's encoder lose its whole batch. So times are clamped to be positive
and ordered, unsigned ids become the signed integers of OTLP with the same bits, and lone surrogates
in texts are escaped.

What was folded is said by sums as attributes (``sum_attributes.py``), and by spans of their own
(``added_attributes.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from otel_recfn.batches.outcomes import SAMPLED
from otel_recfn.batches.sampled_functions import called_function
from otel_recfn.batches.span_names import module_call_name, prefill_name
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.batches.stage import Decided, records
from otel_recfn.batches.wall import OUTSIDE
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import BY_SIZE
from otel_recfn.model.events import PARTIAL, STEP_NUMBER, EventFlag, EventSource
from otel_recfn.model.generation import PHASE
from otel_recfn.sinks.spans.added_attributes import (
    request_attributes,
    sampled_attributes,
    summary_attributes,
)
from otel_recfn.sinks.spans.range_attributes import (
    Attributes,
    base_attributes,
    code_attributes,
    text_attributes,
    thread_attributes,
)
from otel_recfn.sinks.spans.span_hook import SpanHook
from otel_recfn.sinks.spans.span_limits import AppliedLimits, AttributeValue
from otel_recfn.sinks.spans.span_target import SpanTarget, root_attributes
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.sum_attributes import decided_name
from otel_recfn.sinks.spans.unit_samples import SampledSpan
from otel_recfn.support.exceptions import exception_attributes, stacktrace_attributes
from otel_recfn.support.request_batch import BATCH_SIZE, RequestBatch
from otel_recfn.support.texts import utf8_text

SUFFIX = " (folded)"


NO_ATTRIBUTES: Mapping[int, Mapping[str, AttributeValue]] = {}
_NUMBERS = [column for column in BY_SIZE if column.attribute and column.value is not str]
_TEXTS = [column for column in BY_SIZE if column.attribute and column.value is str]
_UNSET = Status(StatusCode.UNSET)
_PYTHON_CALL = int(EventSource.PYTHON_CALL)
_SEEN_FLAGS = np.uint32(EventFlag.ASYNC | EventFlag.PARTIAL | EventFlag.ERROR)
"""The flags that a span shows."""


class SpanMapper:
    """A mapper that builds spans for one target, except those that the program's hook drops."""

    def __init__(self, target: SpanTarget, hook: SpanHook | None = None) -> None:
        self._target, self._hook = target, hook
        self._limits = AppliedLimits(target.limits)
        self._resource = target.resource

    def spans(
        self,
        plan: SpanPlan,
        extra_attributes: Mapping[int, Mapping[str, AttributeValue]] = NO_ATTRIBUTES,
    ) -> list[ReadableSpan]:
        """The spans of a plan, in its order. ``extra_attributes`` are further attributes, by
        row.
        """
        self._resource = self._target.resource
        batch = plan.named(extra_attributes).batch
        linking = self._linking_rows(plan)
        # Where spans that link stand. They get their links when the hook has been asked about all,
        # so that no link leads to a span that it drops.
        indices = dict[int, int]()
        contexts = dict[int, SpanContext]()
        spans = list[ReadableSpan]()
        for (
            row,
            event,
            top,
            span_id,
            parent_id,
            start_ns,
            end_ns,
            name,
            attributes,
            plain,
        ) in self._span_fields(plan, batch):
            events, status = (
                self._add_optional(attributes, batch, row, end_ns) if not plain else ((), _UNSET)
            )
            if row in extra_attributes:
                attributes |= extra_attributes[row]
            if self._hook is not None:
                answer = self._hook.ask(event, span_id, parent_id, name, attributes)
                if answer is None:
                    continue
                name, parent_id = answer
            context = _context_in(contexts, top, span_id)
            parent = _context_in(contexts, top, parent_id)
            if row in linking:
                indices[row] = len(spans)
            spans.append(
                self._span(name, context, parent, attributes, start_ns, end_ns, (), events, status)
            )
        if indices:
            self._add_links(plan, spans, indices)
        return spans

    def _span_fields(self, plan: SpanPlan, batch: Batch) -> Iterator[Any]:
        """What the spans of a plan have, column by column: each row, its event for the hook, the
        span above its unit, its ids, times, name and attributes, and whether nothing seldom is
        filled in it.
        """
        rows = plan.row
        start = np.maximum(batch.start_ns[plan.row], 0)
        hooked: Iterable[Any] = (
            plan.batch.take(rows).events() if self._hook is not None else [None] * len(rows)
        )
        return zip(
            rows.tolist(),
            hooked,
            map(plan.parent_spans.__getitem__, plan.parent_span.tolist()),
            plan.span_id.tolist(),
            plan.parent_id.tolist(),
            start.tolist(),
            np.maximum(batch.end_ns[rows], start).tolist(),
            [utf8_text(batch.names[index]) for index in batch.name[rows].tolist()],
            self._attributes(batch, rows),
            _plain(batch, rows).tolist(),
            strict=True,
        )

    def _linking_rows(self, plan: SpanPlan) -> set[int]:
        if not self._limits.has_links:
            return set()
        return set(plan.row[np.flatnonzero(plan.linked_id)].tolist())

    def _add_links(
        self, plan: SpanPlan, spans: list[ReadableSpan], indices: Mapping[int, int]
    ) -> None:
        """Put spans with a link in the places of those that link, by row."""
        for row, linked in self._linked(plan).items():
            if row not in indices:
                continue
            span = spans[indices[row]]
            # The stage links no span to its parent, but the hook may have dropped what was between.
            is_parent = span.parent is not None and span.parent.span_id == linked.span_id
            if self._hook is None or not is_parent:
                spans[indices[row]] = _with_link(span, linked)

    def summaries(
        self, decided: Decided, which: slice, extra_attributes: Mapping[int, Attributes]
    ) -> list[ReadableSpan]:
        """Spans for the ranges of call paths, below the sent spans around them.

        ``extra_attributes`` as of ``spans``, by place.
        """
        spans = []
        short = not decided.plan.torch_names
        rows = records("summary", decided.summaries[which])
        for position, row in enumerate(rows, which.start):
            attributes = {**summary_attributes(decided, row), **extra_attributes.get(position, {})}
            unit_parent = decided.plan.parent_spans[row.unit]
            parent_id = row.parent_id
            if self._hook is not None:
                parent_id = self._hook.sent_instead(parent_id)
            parent = (
                unit_parent
                if parent_id == unit_parent.span_id
                else _sibling_context(unit_parent, parent_id)
            )
            text = decided_name(decided, row.name)
            if row.module and short:
                names = decided.names
                text = module_call_name(names[row.module], text, names[row.enclosing_module])
            text = prefill_name(text) if PHASE in attributes and short else text
            text = utf8_text(text + SUFFIX)
            context = _sibling_context(unit_parent, row.span_id)
            spans.append(self._span(text, context, parent, attributes, row.start_ns, row.end_ns))
        return spans

    def sampled_spans(self, sampled: Sequence[SampledSpan]) -> list[ReadableSpan]:
        """Spans for functions that samples found in units."""
        spans = []
        for each in sampled:
            top = each.unit_parent
            parent_id = each.parent_id
            if self._hook is not None:
                parent_id = self._hook.sent_instead(parent_id)
            parent = top if parent_id == top.span_id else _sibling_context(top, parent_id)
            context = _sibling_context(top, self._target.new_span_id())
            name = utf8_text(f"{OUTSIDE}: {called_function(each.function)} (sampled)")
            attributes = sampled_attributes(each)
            run = each.run
            spans.append(self._span(name, context, parent, attributes, run.start_ns, run.end_ns))
        return spans

    def root_span(self, trace: StepTrace) -> ReadableSpan:
        """The root span of a trace that we started, which is recorded."""
        start = trace.start
        number = {STEP_NUMBER: trace.number} if trace.number >= 0 else {}
        extra_attributes = {
            **root_attributes(start.parent),
            **number,
            **trace.extra_attributes,
            **thread_attributes(trace.thread),
        }
        attributes = {**start.attributes, **extra_attributes}
        name = utf8_text(trace.name)
        return self._span(
            name, start.context, start.parent, attributes, trace.start_ns, trace.end_ns, start.links
        )

    def request_spans(
        self, batch: RequestBatch, which: slice, unit_attributes: Mapping[str, AttributeValue]
    ) -> list[ReadableSpan]:
        """A span for some of the requests of a batch that has ended, below their own.

        ``unit_attributes`` are those of the batch's unit.
        """
        forward = batch.forward
        end_ns = batch.end_ns or 0
        shared = {BATCH_SIZE: batch.size, **unit_attributes}
        status = _UNSET
        if batch.is_partial:
            shared[PARTIAL] = True
        if batch.error:
            shared["error.type"] = exception_attributes(batch.error)["exception.type"]
            status = Status(StatusCode.ERROR, batch.error)
        # An unsampled span isn't there to be linked to.
        has_link = forward is not None and forward.trace_flags.sampled and self._limits.has_links
        links = (Link(forward),) if forward and has_link else ()
        name = utf8_text(batch.name)
        return [
            self._span(
                name,
                _child_context(request.span, self._target.new_span_id()),
                request.span,
                {**shared, **request_attributes(request, batch.start_ns)},
                batch.start_ns,
                end_ns,
                links,
                status=status,
            )
            for request in batch.requests[which]
        ]

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, AttributeValue],
        start_ns: int,
        end_ns: int,
        links: Sequence[Link] = (),
        events: Sequence[Event] = (),
        status: Status = _UNSET,
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=self._limits.span_attributes(attributes),
            events=events,
            links=links,
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=max(start_ns, 0),
            end_time=max(end_ns, start_ns, 0),
            instrumentation_scope=self._target.scope,
        )

    def _linked(self, plan: SpanPlan) -> dict[int, SpanContext]:
        """The span that each row links to, by row."""
        linked = np.flatnonzero(plan.linked_id)
        columns = (
            plan.row[linked].tolist(),
            plan.linked_id[linked].tolist(),
            plan.linked_span[linked].tolist(),
        )
        sent = self._hook.sent_instead if self._hook is not None else int
        return {
            row: _sibling_context(plan.parent_spans[unit_parent], sent(span_id))
            for row, span_id, unit_parent in zip(*columns, strict=True)
        }

    def _attributes(self, batch: Batch, rows: NDArray[np.int64]) -> list[dict[str, AttributeValue]]:
        """The attributes that most rows have, and all numbers."""
        scopes = batch.scope[rows].tolist()
        threads = batch.thread[rows].tolist()
        found = [
            base_attributes(scope, batch.tracks[thread]).copy()
            for scope, thread in zip(scopes, threads, strict=True)
        ]
        for column in _NUMBERS:
            if batch.is_empty(column):
                continue
            values = getattr(batch, column.name)[rows].astype(np.int64)
            filled = np.flatnonzero(values != column.empty)
            for position, value in zip(
                filled.tolist(), np.take(values, filled).tolist(), strict=True
            ):
                found[position][column.attribute] = value
        return found

    def _add_optional(
        self, attributes: dict[str, AttributeValue], batch: Batch, row: int, end_ns: int
    ) -> tuple[Sequence[Event], Status]:
        """Add the attributes that few rows have; returns the events and the status."""
        flags = int(batch.flags[row])
        status = _UNSET
        events = list[Event]()
        if flags & EventFlag.ASYNC:
            attributes["recfn.async"] = True
        if flags & EventFlag.PARTIAL:
            attributes[PARTIAL] = True
        if flags & EventFlag.ERROR:
            error = utf8_text(batch.names[batch.error[row]])
            stacktrace = utf8_text(batch.names[batch.stacktrace[row]])
            exception = exception_attributes(error) | stacktrace_attributes(stacktrace)
            if self._limits.has_events:
                events.append(Event("exception", self._limits.event_attributes(exception), end_ns))
            attributes["error.type"] = exception["exception.type"]
            status = Status(StatusCode.ERROR, error)
        for column in _TEXTS:
            if index := getattr(batch, column.name)[row]:
                attributes |= text_attributes(column, batch.names[index])
        if batch.source[row] == EventSource.PYTHON_CALL:
            attributes |= code_attributes(utf8_text(batch.names[batch.name[row]]))
        elif code := batch.names[batch.code[row]]:
            attributes |= code_attributes(utf8_text(code))
        return events, status


def _with_link(span: ReadableSpan, linked: SpanContext) -> ReadableSpan:
    """The same span with a link."""
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=(Link(linked),),
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _context_in(contexts: dict[int, SpanContext], top: SpanContext, span_id: int) -> SpanContext:
    """The context of a span of a unit, or of the one above it, made once for each."""
    if span_id == top.span_id:
        return top
    context = contexts.get(span_id)
    if context is None:
        context = contexts[span_id] = _sibling_context(top, span_id)
    return context


def _sibling_context(unit_context: SpanContext, span_id: int) -> SpanContext:
    return SpanContext(unit_context.trace_id, span_id, False, SAMPLED, unit_context.trace_state)


def _child_context(parent: SpanContext, span_id: int) -> SpanContext:
    return SpanContext(parent.trace_id, span_id, False, SAMPLED, parent.trace_state)


def _plain(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the rows of which ``_add_optional`` has nothing to say."""
    plain: NDArray[np.bool_] = (batch.code[rows] | batch.flags[rows] & _SEEN_FLAGS) == 0
    plain &= batch.source[rows] != _PYTHON_CALL
    for column in _TEXTS:
        if not batch.is_empty(column):
            plain &= getattr(batch, column.name)[rows] == 0
    return plain
