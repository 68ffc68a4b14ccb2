"""Readers of outputs: events, Chrome traces, the legacy profiler's lists, trees, reports and spans,
as their users get them.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from output_values import (
    PROGRAM,
    STEP_IN_CHROME,
    UNNAMED_STEP,
    ChromeTrace,
    Range,
    Ranges,
    Report,
    Slice,
    Span,
    Sums,
    SumsByName,
    has_flag,
)

from helpers.otlp_server import OtlpServer
from helpers.trace_files import read_trace
from otel_recfn import cli
from otel_recfn.batches.span_names import recorded_call_name
from otel_recfn.legacy import EventKind


def event_range(event: Any) -> Range:
    """What an event of a sink or profile says."""
    is_partial = has_flag(event, "PARTIAL")
    return Range(
        start_ns=event.start_ns,
        end_ns=None if is_partial else event.end_ns,
        name=event.name,
        thread_id=event.thread_id,
        end_thread=None if is_partial else event.end_thread.native_id,
        scope=event.scope.name,
        error=event.error,
        sequence_nr=event.sequence_nr,
        source=event.source.name,
        step_number=event.step_number,
        cpu_time_ns=event.cpu_time_ns,
        module=event.module,
        parent=event.parent,
    )


def chrome_ranges(trace: ChromeTrace) -> Ranges:
    """What slices say."""
    return {event_id: _slice_range(each) for event_id, each in trace.ranges().items()}


def _slice_range(each: Slice) -> Range:
    args = each.args
    source = slice_source(each)
    number = args.get("recfn.step.number", -1)
    name = each.name.removesuffix(f"#{number}")
    if source == "STEP" and name == STEP_IN_CHROME:
        name = UNNAMED_STEP
    is_partial = bool(args.get("Partial"))
    return Range(
        start_ns=each.start_ns,
        end_ns=None if is_partial else each.end_ns,
        name=name,
        thread_id=args["Thread id"],
        end_thread=None if is_partial else each.end_thread,
        scope=args["Scope"],
        error=args.get("Error", ""),
        sequence_nr=args.get("Sequence number", -1),
        source=source,
        step_number=number,
        cpu_time_ns=args.get("CPU time (ns)", -1),
        module=args.get("Module", ""),
    )


def slice_source(each: Slice) -> str:
    """What recorded a range, as its event says or its category does."""
    if each.category == "python_function":
        return "MODULE" if each.name.startswith("nn.Module: ") else "PYTHON_CALL"
    by_category = {"cpu_op": "TORCH", "user_annotation": "RECORD_FUNCTION"}
    return str(each.args.get("Source", by_category[each.category]))


def span_range(span: Span) -> Range:
    """What the span of one range says. Its name is another one, for people."""
    attributes = span.attributes
    has_columns = "recfn.thread_id" in attributes
    errors = [
        f"{one['exception.type']}: {one.get('exception.message', '')}" for one in span.exceptions
    ]
    return Range(
        start_ns=span.start_ns,
        end_ns=None if attributes.get("recfn.partial") else span.end_ns,
        thread_id=attributes.get("recfn.thread_id"),
        scope=attributes.get("recfn.scope"),
        error=errors[0] if errors else "",
        sequence_nr=attributes.get("recfn.sequence_nr", -1) if has_columns else None,
        step_number=attributes.get("recfn.step.number", -1),
        cpu_time_ns=attributes.get("recfn.cpu_time_ns", -1),
        module=attributes.get("recfn.module", "") if has_columns else None,
    )


def legacy_ranges(lists: Iterable[Iterable[Any]]) -> Ranges:
    """What pushes and pops say."""
    events = [event for each in lists for event in each]
    pops = {event.event_id: event for event in events if event.kind == EventKind.POP_RANGE}
    found = {}
    for push in [event for event in events if event.kind == EventKind.PUSH_RANGE]:
        pop = pops.pop(push.event_id, None)
        found[push.event_id] = Range(
            start_ns=push.cpu_ns,
            end_ns=pop.cpu_ns if pop is not None else None,
            name=push.name,
            thread_id=push.thread_id,
            sequence_nr=push.sequence_nr,
        )
    assert not pops, "a range ends that never began"
    return found


def shown_name(event: Any) -> str:
    """The name that tables, trees, reports and metrics have for an event."""
    if event.source.name != "MODULE":
        return str(event.name)
    return recorded_call_name(event.name, event.module, event.enclosing_module)


def sums_by_name(
    events: Iterable[Any],
    self_ns: Callable[[Any], float] | None = None,
    name_of: Callable[[Any], str] = shown_name,
) -> SumsByName:
    """The sums of events, by the names that are shown."""
    found = defaultdict[str, Sums](Sums)
    for event in events:
        sums = found[name_of(event)]
        sums.count += 1
        sums.total_ns += event.duration_ns
        sums.self_ns = (
            sums.self_ns + self_ns(event)
            if self_ns is not None and sums.self_ns is not None
            else None
        )
    return found


def tree_sums(tree: Iterable[Any]) -> SumsByName:
    """The sums of a tree's paths, by their last names."""
    found = defaultdict[str, Sums](Sums)
    for path in tree:
        sums = found[path.name]
        sums.count += path.count
        sums.total_ns += path.cpu_time_total * 1000
        sums.self_ns = (sums.self_ns or 0) + path.self_cpu_time_total * 1000
    return found


def report_of(path: Path) -> Report:
    """The report that ``otel-recfn report`` makes of a Chrome trace."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["report", str(path), "--format", "json"]) == 0
    return Report(json.loads(printed.getvalue()))


def chrome_trace_in(path: Path) -> ChromeTrace:
    """A Chrome trace; times in it are exact to the nanosecond."""
    trace = read_trace(path)
    base_ns = trace["baseTimeNanoseconds"]
    slices: list[Slice] = []
    begun: dict[Any, Any] = {}
    instants = 0
    for event in trace["traceEvents"]:
        phase = event["ph"]
        instants += phase == "i"
        if phase not in ("X", "b", "e"):
            continue
        at_ns = int(base_ns) + int(event["ts"] * 1000)
        if phase == "X":
            end_ns = at_ns + int(event["dur"] * 1000)
            slices.append(
                Slice(
                    event["name"],
                    event["cat"],
                    at_ns,
                    end_ns,
                    event["tid"],
                    event["tid"],
                    event["args"],
                    nests=True,
                )
            )
        elif phase == "b":
            begun[event["id2"]["local"]] = event, at_ns
        else:
            begin, start_ns = begun.pop(event["id2"]["local"])
            slices.append(
                Slice(
                    begin["name"],
                    begin["cat"],
                    start_ns,
                    at_ns,
                    begin["tid"],
                    event["tid"],
                    begin["args"],
                    nests=False,
                )
            )
    assert not begun, "an asynchronous slice has no end"
    has_ranges = any("Event id" in each.args for each in slices)
    return ChromeTrace(slices, report_of(path) if has_ranges else Report({}), instants)


def from_sdk_span(span: ReadableSpan) -> Span:
    return Span(
        name=span.name,
        trace_id=span.context.trace_id,
        span_id=span.context.span_id,
        parent_id=span.parent.span_id if span.parent is not None else 0,
        linked_ids=[link.context.span_id for link in span.links],
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        is_error=span.status.status_code.name == "ERROR",
        attributes=dict(span.attributes or {}),
        exceptions=[
            dict(event.attributes or {}) for event in span.events if event.name == "exception"
        ],
        is_ours=span.instrumentation_scope is not None
        and span.instrumentation_scope.name != PROGRAM,
    )


def otlp_spans(server: OtlpServer) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace_id=int.from_bytes(span.trace_id, "big"),
            span_id=int.from_bytes(span.span_id, "big"),
            parent_id=int.from_bytes(span.parent_span_id, "big"),
            linked_ids=[int.from_bytes(link.span_id, "big") for link in span.links],
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_error=span.status.code == span.status.STATUS_CODE_ERROR,
            attributes=_values(span.attributes),
            exceptions=[
                _values(event.attributes) for event in span.events if event.name == "exception"
            ],
            is_ours=True,
        )
        for span in server.spans
    ]


def _values(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        tuple(_value(one) for one in value.array_value.values)
        if kind == "array_value"
        else getattr(value, kind)
    )
