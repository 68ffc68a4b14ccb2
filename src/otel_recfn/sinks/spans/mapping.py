"""The mapping of a plan's rows to finished spans, field by field.

Building a span takes a few microseconds under the GIL, and the program waits meanwhile. So the loop works on plain lists, makes
each span context once in a call, and looks at seldom filled columns only in rows that have something in them.

One invalid field makes the SDK's encoder lose its whole batch. So times are clamped to be positive and ordered, unsigned ids
become the signed integers of OTLP with the same bits, and lone surrogates in texts are escaped.

What was folded is said by sums as attributes (how many, how long, which names took most of it), and by spans of their own, with
the attributes of the span pruning processor of OpenTelemetry Collectors, which trace viewers know. Both are made for many at
once, of columns: taking numbers out of columns one by one takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from otel_recfn.batches.number_sets import Places, begins_of, places_in
from otel_recfn.batches.span_names import PREFIX, called, prefill_name, shown_name, with_span_names
from otel_recfn.batches.stage import SAMPLED, Decided, SpanPlan
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.columns import BY_SIZE, EACH_KEY, Column
from otel_recfn.model.events import CPU_TIME, EventFlag, EventSource, RecordScope
from otel_recfn.model.generation import PHASE
from otel_recfn.sinks.spans.provider import AppliedLimits, AttributeValue, SpanTarget
from otel_recfn.sinks.spans.span_hook import FOLDED_COUNT, FOLDED_NS, UNIT_FOLDED_COUNT, SpanHook
from otel_recfn.sinks.spans.step_traces import StepTrace
from otel_recfn.support.texts import called_code, element_texts, text_of_utf8, values_by_key

Attributes = dict[str, AttributeValue]


def sums_of(decided: Decided, places: Places) -> list[Attributes]:
    """The attributes for the sums at these places."""
    sums = decided.sums[places]
    begins = begins_of(decided.sums["top_end"], places)
    lengths = sums["top_end"] - begins
    ends, rows = np.cumsum(lengths), decided.top[places_in(begins, lengths)].tolist()
    texts = {name: text_of_utf8(_shown(decided, name)) for name in {name for _, _, name in rows}}
    top = [f"{texts[name]}: {count} x, {self_ns / 1e6:.3f} ms" for count, self_ns, name in rows]
    columns = (sums["of_unit"], sums["ranges"], sums["duration_ns"], ends - lengths, ends)
    return [
        _told(_OF_UNIT if of_unit else _OF_SPAN, ranges, duration_ns, top[first:last])
        for of_unit, ranges, duration_ns, first, last in zip(
            *[column.tolist() for column in columns], strict=True
        )
    ]


def _told(names: tuple[str, str, str], ranges: int, duration_ns: int, top: list[str]) -> Attributes:
    """A sum that took no time, as that of a range which shares another one's span, has no names that took most."""
    found: Attributes = {names[0]: ranges, names[1]: duration_ns}
    return {**found, names[2]: top} if top else found


def further_of_spans(decided: Decided, first: int, last: int) -> tuple[dict[int, Attributes], int]:
    """The attributes of some spans that no column has: for ranges folded into them, and for their unit.

    Returns them by the spans' numbers, from ``first`` on, and how many ranges were folded in the units that are told so.
    """
    span, folded = decided.sums["span"], decided.sums["ranges"]
    places = np.flatnonzero((span >= first) & (span < last) & (folded > 0))
    further = dict[int, Attributes]()
    for number, told in zip(
        span[places].tolist(), sums_of(decided, places) if len(places) else (), strict=True
    ):
        further.setdefault(number, {}).update(told)
    for number in [number for number in decided.further if first <= number < last]:
        further.setdefault(number, {}).update(decided.further[number])
    return further, int(folded[places][decided.sums["of_unit"][places] != 0].sum())


_OF_SPAN = (FOLDED_COUNT, FOLDED_NS, "recfn.folded.top")
_OF_UNIT = (UNIT_FOLDED_COUNT, "recfn.unit.folded.duration_ns", "recfn.unit.top")


SUFFIX = " (folded)"


def _summary_attributes(
    decided: Decided, which: slice, of_rows: Iterator[Attributes]
) -> list[Attributes]:
    """The attributes of summaries of call paths. ``of_rows`` are those of single ranges whose rows are there."""
    rows, names = decided.summaries[which], decided.names
    columns = ["first_id", "count", "shortest_ns", "longest_ns", "total_ns", "cpu_time_ns"]
    return [
        next(of_rows)
        if row >= 0
        else _of_module(names[name], names[module] if module else "") | _summary_times(*times)
        for times, (row, name, module) in zip(
            rows[columns].tolist(), rows[["row", "name", "module"]].tolist(), strict=True
        )
    ]


def _shown(decided: Decided, name: int) -> str:
    return shown_name(decided.names[name], torch_names=decided.plan.torch_names)


def _of_module(name: str, path: str) -> Attributes:
    """The attributes of a summary of ranges of that name. Of module calls, ``path`` is what their paths share, if anything."""
    if not name.startswith(PREFIX):
        return {}
    of_path: Attributes = {"recfn.module": text_of_utf8(path)} if path else {}
    return {**of_path, "recfn.module.class": text_of_utf8(name.removeprefix(PREFIX))}


def _summary_times(
    first_id: int, count: int, shortest_ns: int, longest_ns: int, total_ns: int, cpu_time_ns: int
) -> Attributes:
    worked: Attributes = {CPU_TIME: cpu_time_ns} if cpu_time_ns >= 0 else {}
    if count == 1:
        return {"recfn.event_id": first_id, **worked}
    return {
        "aggregation.is_summary": True,
        "aggregation.span_count": count,
        "aggregation.duration_min_ns": shortest_ns,
        "aggregation.duration_max_ns": longest_ns,
        "aggregation.duration_avg_ns": total_ns // count,
        "aggregation.duration_total_ns": total_ns,
        **worked,
    }


NO_ATTRIBUTES: Mapping[int, Mapping[str, AttributeValue]] = {}
_NUMBERS = [column for column in BY_SIZE if column.attribute and column.value is not str]
_TEXTS = [column for column in BY_SIZE if column.attribute and column.value is str]
_UNSET = Status(StatusCode.UNSET)
_INT64_MAX = (1 << 63) - 1
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
        self, plan: SpanPlan, further: Mapping[int, Mapping[str, AttributeValue]] = NO_ATTRIBUTES
    ) -> list[ReadableSpan]:
        """The spans of a plan, in its order. ``further`` are further attributes, by row."""
        recorded, rows, hook = plan.batch, plan.row, self._hook
        self._resource = self._target.resource
        batch = plan.named(further).batch
        start = np.maximum(batch.start_ns[rows], 0)
        links = self._linked(plan) if plan.linked_id.any() else {}
        hooked: Iterable[Any] = (
            recorded.take(rows).events() if hook is not None else [None] * len(rows)
        )
        contexts = dict[int, SpanContext]()
        spans = []
        for row, event, top, span_id, parent_id, start_ns, end_ns, name, attributes, plain in zip(
            rows.tolist(),
            hooked,
            map(plan.spans_above.__getitem__, plan.above.tolist()),
            plan.span_id.tolist(),
            plan.parent_id.tolist(),
            start.tolist(),
            np.maximum(batch.end_ns[rows], start).tolist(),
            [text_of_utf8(batch.names[index]) for index in batch.name[rows].tolist()],
            self._attributes(batch, rows),
            _plain(batch, rows).tolist(),
            strict=True,
        ):
            events, status = (
                self._add_seldom(attributes, batch, row, end_ns) if not plain else ((), _UNSET)
            )
            if row in further:
                attributes |= further[row]
            if hook is not None:
                kept = hook.ask(event, span_id, parent_id, name, attributes)
                if kept is None:
                    continue
                name, parent_id = kept
            context, parent = (
                contexts.get(span_id),
                top if parent_id == top.span_id else contexts.get(parent_id),
            )
            if context is None:
                context = contexts[span_id] = _in_trace_of(top, span_id)
            if parent is None:
                parent = contexts[parent_id] = _in_trace_of(top, parent_id)
            linked = (Link(links[row]),) if row in links and self._limits.has_links else ()
            spans.append(
                self._span(
                    name, context, parent, attributes, start_ns, end_ns, linked, events, status
                )
            )
        return spans

    def summaries(
        self, decided: Decided, which: slice, further: Mapping[int, Attributes]
    ) -> list[ReadableSpan]:
        """Spans for the ranges of call paths, below the sent spans around them. ``further`` as of ``spans``, by place."""
        rows, spans, short = decided.summaries[which], [], not decided.plan.torch_names
        columns = ["name", "module", "count", "span_id", "parent_id", "unit", "start_ns", "end_ns"]
        of_rows = _summary_attributes(decided, which, self._of_single(decided, which))
        for place, (
            (name, module, count, span_id, parent_id, unit, start_ns, end_ns),
            attributes,
        ) in enumerate(zip(rows[columns].tolist(), of_rows, strict=True), which.start):
            attributes |= further.get(place, {})
            above = decided.plan.spans_above[unit]
            if self._hook is not None:
                parent_id = self._hook.sent_instead(parent_id)
            parent = above if parent_id == above.span_id else _in_trace_of(above, parent_id)
            text = (
                called(decided.names[module], _shown(decided, name))
                if module and short
                else _shown(decided, name)
            )
            text = prefill_name(text) if PHASE in attributes and short else text
            text = text_of_utf8(text if count == 1 else text + SUFFIX)
            spans.append(
                self._span(text, _in_trace_of(above, span_id), parent, attributes, start_ns, end_ns)
            )
        return spans

    def _of_single(self, decided: Decided, which: slice) -> Iterator[Attributes]:
        """The attributes of the rows that these summaries stand for, one at a time."""
        has_row = decided.summaries["row"] >= 0
        first = int(has_row[: which.start].sum())
        rows = np.arange(first, first + int(has_row[which].sum()))
        batch = with_span_names(decided.single, rows, torch_names=decided.plan.torch_names)
        for row, attributes in zip(rows.tolist(), self._attributes(batch, rows), strict=True):
            self._add_seldom(attributes, batch, row, 0)
            yield attributes

    def root_span(self, trace: StepTrace) -> ReadableSpan:
        """The root span of a trace that we started, which is recorded."""
        assert trace.start is not None
        start, number = (
            trace.start,
            {"recfn.step.number": trace.number} if trace.number >= 0 else {},
        )
        further = {
            "recfn.root": True,
            **number,
            **trace.further,
            **_thread_attributes(trace.thread),
        }
        attributes = {**start.attributes, **further}
        name = text_of_utf8(trace.name)
        return self._span(
            name, start.context, start.parent, attributes, trace.start_ns, trace.end_ns, start.links
        )

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
            plan.linked_above[linked].tolist(),
        )
        sent = self._hook.sent_instead if self._hook is not None else int
        return {
            row: _in_trace_of(plan.spans_above[above], sent(span_id))
            for row, span_id, above in zip(*columns, strict=True)
        }

    def _attributes(self, batch: Batch, rows: NDArray[np.int64]) -> list[dict[str, AttributeValue]]:
        """The attributes that most rows have, and all numbers."""
        scopes, threads = batch.scope[rows].tolist(), batch.thread[rows].tolist()
        found = [
            base_attributes(scope, batch.tracks[thread]).copy()
            for scope, thread in zip(scopes, threads, strict=True)
        ]
        for column in _NUMBERS:
            if batch.is_empty(column):
                continue
            values = getattr(batch, column.name)[rows].astype(np.int64)
            filled = np.flatnonzero(values != column.empty)
            for place, value in zip(filled.tolist(), np.take(values, filled).tolist(), strict=True):
                found[place][column.attribute] = value
        return found

    def _add_seldom(
        self, attributes: dict[str, AttributeValue], batch: Batch, row: int, end_ns: int
    ) -> tuple[Sequence[Event], Status]:
        """Add the attributes that few rows have; returns the events and the status."""
        flags, status, events = int(batch.flags[row]), _UNSET, list[Event]()
        if flags & EventFlag.ASYNC:
            attributes["recfn.async"] = True
        if flags & EventFlag.PARTIAL:
            attributes["recfn.partial"] = True
        if flags & EventFlag.ERROR:
            error, stacktrace = (
                text_of_utf8(batch.names[batch.error[row]]),
                text_of_utf8(batch.names[batch.stacktrace[row]]),
            )
            exception = exception_attributes(error) | stacktrace_attributes(stacktrace)
            if self._limits.has_events:
                events.append(Event("exception", self._limits.event_attributes(exception), end_ns))
            attributes["error.type"] = exception["exception.type"]
            status = Status(StatusCode.ERROR, error)
        for column in _TEXTS:
            if index := getattr(batch, column.name)[row]:
                attributes |= text_attributes(column, batch.names[index])
        if batch.source[row] == EventSource.PYTHON_CALL:
            attributes |= code_attributes(text_of_utf8(batch.names[batch.name[row]]))
        elif code := batch.names[batch.code[row]]:
            attributes |= code_attributes(text_of_utf8(code))
        return events, status


@lru_cache(4096)
def base_attributes(scope: int, thread: Track) -> dict[str, AttributeValue]:
    """The attributes that all ranges of a scope in a thread share."""
    shared: dict[str, AttributeValue] = {
        "recfn.scope": RecordScope(scope).name,
        "recfn.thread_id": _signed(thread.thread_id),
    }
    return shared | _thread_attributes(thread)


def _in_trace_of(above: SpanContext, span_id: int) -> SpanContext:
    return SpanContext(above.trace_id, span_id, False, SAMPLED, above.trace_state)


def _plain(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the rows of which ``_add_seldom`` has nothing to say."""
    plain: NDArray[np.bool_] = (batch.code[rows] | batch.flags[rows] & _SEEN_FLAGS) == 0
    plain &= batch.source[rows] != _PYTHON_CALL
    for column in _TEXTS:
        if not batch.is_empty(column):
            plain &= getattr(batch, column.name)[rows] == 0
    return plain


def text_attributes(column: Column[Any, Any], text: str) -> Mapping[str, AttributeValue]:
    """The attributes for a text of that column. Keys that begin with an underscore are for us, and not sent."""
    if column.attribute == EACH_KEY:
        return {key: value for key, value in values_by_key(text).items() if not key.startswith("_")}
    return {column.attribute: element_texts(text) if column.is_json else text_of_utf8(text)}


def code_attributes(name: str) -> dict[str, AttributeValue]:
    """The attributes of the semantic conventions for code, for a call with that name or of that code."""
    code = called_code(name)
    attributes: dict[str, AttributeValue] = {"code.function.name": code.function}
    if code.file:
        attributes |= {"code.file.path": code.file, "code.line.number": code.line}
    return attributes


def _thread_attributes(thread: Track) -> dict[str, AttributeValue]:
    """The attributes of the semantic conventions for threads, of threads that Python knows."""
    attributes: dict[str, AttributeValue] = {}
    if thread.ident:
        attributes["thread.id"] = _signed(thread.ident)
    if thread.name:
        attributes["thread.name"] = text_of_utf8(thread.name)
    return attributes


def exception_attributes(error: str) -> dict[str, AttributeValue]:
    kind, _, message = error.partition(": ")
    return {"exception.type": kind, "exception.message": message}


def stacktrace_attributes(stacktrace: str) -> dict[str, AttributeValue]:
    """The attribute of the semantic conventions; none if there is no stack trace."""
    return {"exception.stacktrace": stacktrace} if stacktrace else {}


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer, since OTLP's integers are signed."""
    return number - (1 << 64) if number > _INT64_MAX else number
