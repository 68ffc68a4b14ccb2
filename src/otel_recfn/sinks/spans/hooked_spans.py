"""Spans of ranges as the program's hook wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Event
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.sinks.spans.span_hook import Hooked, SpanHook
from otel_recfn.sinks.spans.summaries import Summary


class HookedMapper(SpanMapper):
    """Builds spans for one target, but for those that the hook drops."""

    def __init__(self, target: SpanTarget, hook: SpanHook) -> None:
        super().__init__(target)
        self._target, self._hook = target, hook

    def spans(self, plan: SpanPlan, *more: Any) -> list[ReadableSpan]:
        """The spans of a plan, in its order, without the dropped ones."""
        events = plan.batch.take(plan.row).events()
        above = [plan.spans_above[place] for place in plan.above.tolist()]
        made = zip(super().spans(plan, *more), events, above, plan.parent_id.tolist(), strict=True)
        return [span for each in made if (span := self._hooked(*each)) is not None]

    def summaries(self, made: Sequence[Summary]) -> list[ReadableSpan]:
        """Spans for folded ranges, below what is sent of those around them."""
        return super().summaries([one._replace(parent_id=self._hook.sent_instead(one.parent_id)) for one in made])

    def _hooked(self, span: ReadableSpan, event: Event, above: SpanContext, parent_id: int) -> ReadableSpan | None:
        asked = self._hook.ask(event, _context(span).span_id, parent_id, span.name, dict(span.attributes or {}))
        return self._changed(span, asked, above) if asked is not None else None

    def _changed(self, span: ReadableSpan, asked: Hooked, above: SpanContext) -> ReadableSpan:
        limits = self._target.limits
        attributes: Any = BoundedAttributes(
            limits.max_span_attributes, asked.attributes, max_value_len=limits.max_span_attribute_length
        )
        parent = span.parent
        if parent is None or parent.span_id != asked.parent_id:
            parent = _with_id(above, asked.parent_id)
        return ReadableSpan(
            name=asked.name,
            context=span.context,
            parent=parent,
            resource=span.resource,
            attributes=attributes,
            events=span.events,
            links=[self._to_sent(link) for link in span.links],
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _to_sent(self, link: Link) -> Link:
        instead = self._hook.sent_instead(link.context.span_id)
        return link if instead == link.context.span_id else Link(_with_id(link.context, instead), link.attributes)


def part_that_was_made(plan: SpanPlan, spans: list[ReadableSpan]) -> SpanPlan:
    """The plan without the spans that the hook dropped."""
    if len(spans) == len(plan.row):
        return plan
    made = np.array([_context(span).span_id for span in spans], np.uint64)
    return plan.part(np.flatnonzero(is_in(plan.span_id, made)))


def _with_id(context: SpanContext, span_id: int) -> SpanContext:
    if span_id == context.span_id:
        return context
    return SpanContext(context.trace_id, span_id, False, context.trace_flags, context.trace_state)


def _context(span: ReadableSpan) -> SpanContext:
    context: SpanContext = span.context
    return context
