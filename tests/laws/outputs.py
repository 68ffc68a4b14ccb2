"""One run of a program in all outputs at once, and what each of them says of its ranges, by their
event ids.

    the program ──┬─► spans, through a span processor or as OTLP      ┐
                  ├─► a Chrome trace ──► its report                   ├ instrument()
                  ├─► a sink                                          │
                  ├─► metric, counters                                ┘
                  ├─► events, averages, tree, report, Chrome trace      profile()
                  └─► events, averages                                  the legacy profiler

It asks as a user does: through the public API, and through files and requests as their readers get
them.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import Tracer
from outputs_programs import UNSAMPLED, Program

from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, cli, profile
from otel_recfn.batches.span_names import recorded_call_name
from otel_recfn.legacy import (
    EventKind,
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
)

NODE = "autograd::engine::evaluate_function: "
"""The prefix of the range around a backward node, which is one span with the node below
``detail="all"``.
"""
UNNAMED_STEP, STEP_IN_CHROME = "step", "ProfilerStep"


# --- what an output says


@dataclass(frozen=True)
class Range:
    """What an output says of a range; None where it says nothing."""

    start_ns: int
    end_ns: int | None
    """None, too, where the range was open at the end: each capture has its own end."""
    name: str | None = None
    thread_id: int | None = None
    end_thread: int | None = None
    """The operating system's id."""
    scope: str | None = None
    error: str | None = None
    """Empty if no exception left it."""
    sequence_nr: int | None = None
    step_number: int | None = None
    cpu_time_ns: int | None = None
    module: str | None = None
    parent: int | None = None
    """Event id of the range around it; 0 if there is none."""


Ranges = Mapping[int, Range]
"""By event id."""


@dataclass
class Sums:
    """Count, length, and length without the ranges in it, of ranges of one name.

    Times are in nanoseconds.
    """

    count: int = 0
    total_ns: float = 0
    self_ns: float | None = 0


SumsByName = Mapping[str, Sums]


@dataclass(frozen=True)
class Span:
    """A span as a backend has it, whatever way it came."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    """0 if it has none."""
    linked_ids: Sequence[int]
    """The ids of the spans that it links to."""
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: Mapping[str, Any]
    exceptions: Sequence[Mapping[str, Any]]
    is_ours: bool

    @property
    def event_id(self) -> int:
        """That of its range; 0 if it isn't one range's."""
        return int(self.attributes.get("recfn.event_id", 0))

    @property
    def calls(self) -> int:
        """The number of calls that it stands for, of a span ``... (folded)``; else 0."""
        return int(self.attributes.get("aggregation.span_count", 0))

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Slice:
    """A slice of a Chrome trace."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    end_thread: int
    args: Mapping[str, Any]
    nests: bool
    """Whether it lies in the slices around it on its thread."""


@dataclass
class ChromeTrace:
    """A Chrome trace and the report of it."""

    slices: list[Slice]
    report: SumsByName
    instants: int

    def ranges(self) -> dict[int, Slice]:
        """The slices of ranges, by event id."""
        range_slices = [each for each in self.slices if "Event id" in each.args]
        found = {each.args["Event id"]: each for each in range_slices}
        assert len(found) == len(range_slices), "an event id stands in the trace twice"
        return found

    def spans(self) -> list[Slice]:
        """Those of the program's spans."""
        return [
            each for each in self.slices if "span_id" in each.args and "Event id" not in each.args
        ]

    def automatic_steps(self) -> list[Slice]:
        """Those of training steps that nobody marked."""
        return [
            each
            for each in self.slices
            if "recfn.step.number" in each.args and "Event id" not in each.args
        ]


@dataclass
class Outputs:
    """What all outputs say of one run."""

    events: Mapping[int, Any]
    """Of the sink, those that are ranges, by event id."""
    marks: int
    """The number of its other events."""
    spans: list[Span]
    chrome: ChromeTrace
    children_chrome: list[ChromeTrace]
    profile: profile
    profile_chrome: ChromeTrace
    profile_report: SumsByName
    legacy: Any
    metrics: Mapping[str, Sequence[Any]]
    """The points of each metric, by its name."""
    counters: Mapping[str, int]
    said: dict[str, Ranges] = field(default_factory=dict)
    """What each output says of each range."""
    sums: dict[str, SumsByName] = field(default_factory=dict)
    """What each output says of the ranges of each name."""

    def __post_init__(self) -> None:
        self.profiled = {
            event.event_id: event for event in self.profile.events() if event.kind.name == "RANGE"
        }
        self.by_span = {span.span_id: span for span in self.spans}
        self.single = {
            span.event_id: span
            for span in self.spans
            if span.event_id and not self._is_in_child(span)
        }
        """The spans of one range, by event id."""
        self.said = {
            "sink": {event_id: event_range(event) for event_id, event in self.events.items()},
            "profile": {
                event_id: event_range(event) for event_id, event in self.profiled.items()
            },
            "Chrome trace": chrome_ranges(self.chrome),
            "Chrome trace of the profile": chrome_ranges(self.profile_chrome),
            "spans": {event_id: span_range(span) for event_id, span in self.single.items()},
            "legacy profiler": legacy_ranges(self.legacy),
        }
        self.sums = {
            "profile's events": sums_by_name(
                self.profiled.values(), lambda event: float(event.self_ns)
            ),
            "averages": {
                each.key: Sums(
                    each.count, each.cpu_time_total * 1000, each.self_cpu_time_total * 1000
                )
                for each in self.profile.key_averages()
            },
            "tree": tree_sums(self.profile.tree()),
            "report of the profile": self.profile_report,
            "report of the Chrome trace": self.chrome.report,
            "report of the profile's Chrome trace": self.profile_chrome.report,
            "metric": self._metric_sums(),
        }

    def child_spans(self) -> list[Span]:
        """The spans of what ran in other processes."""
        return [span for span in self.spans if self._is_in_child(span)]

    def containers(self) -> list[Span]:
        """Our spans that are no range's and no sum: roots of traces that we started, and the
        like.
        """
        return [
            span for span in self.spans if span.is_ours and not span.event_id and not span.calls
        ]

    def folded(self) -> list[Span]:
        """The spans that stand for several calls."""
        return [span for span in self.spans if span.calls]

    def program_spans(self) -> list[Span]:
        return [span for span in self.spans if not span.is_ours]

    def below(self, span: Span) -> list[Span]:
        return [each for each in self.spans if each.parent_id == span.span_id]

    def is_step(self, event_id: int) -> bool:
        return bool(self.events[event_id].source.name == "STEP")

    def has(self, event_id: int, flag: str) -> bool:
        return has_flag(self.events[event_id], flag)

    def _is_in_child(self, span: Span | None) -> bool:
        while span is not None:
            if span.is_ours and span.name.startswith("DataLoader worker"):
                return True
            span = self.by_span.get(span.parent_id)
        return False

    def _metric_sums(self) -> SumsByName:
        found: dict[str, Sums] = {}
        for point in self.metrics.get("recfn.operation.duration", ()):
            sums = found.setdefault(point.attributes["recfn.name"], Sums(self_ns=None))
            sums.count += point.count
            sums.total_ns += point.sum * 1e9
        return found


def has_flag(event: Any, flag: str) -> bool:
    return bool(event.flags & type(event.flags)[flag])


def overlaps(event: Any) -> bool:
    """Whether others may overlap a range in its thread."""
    return has_flag(event, "ASYNC") or has_flag(event, "CROSSING")


# --- readers of outputs


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
    name, _, number = each.name.rpartition("#")
    is_step = number.isdigit()
    if not is_step:
        name = each.name
    elif name == STEP_IN_CHROME:
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
        step_number=int(number) if is_step else -1,
        cpu_time_ns=args.get("CPU time (ns)", -1),
        module=args.get("Module", ""),
    )


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


def report_sums(report: Mapping[str, Any]) -> SumsByName:
    """The sums in a report's table."""
    return {
        row["name"]: Sums(row["count"], row["total_us"] * 1000, row["self_us"] * 1000)
        for row in report["by_name"]
    }


def report_of(path: Path) -> SumsByName:
    """The table that ``otel-recfn report`` makes of a Chrome trace."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["report", str(path), "--format", "json"]) == 0
    return report_sums(json.loads(printed.getvalue()))


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
                    start_ns,
                    at_ns,
                    begin["tid"],
                    event["tid"],
                    begin["args"],
                    nests=False,
                )
            )
    assert not begun, "an asynchronous slice has no end"
    return ChromeTrace(
        slices, report_of(path) if any("Event id" in each.args for each in slices) else {}, instants
    )


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


# --- the run


PROGRAM = "program"
"""The name of the program's tracer."""


class ByName(Sampler):
    """Leaves out the spans whose names say so."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *others: Any, **more: Any
    ) -> SamplingResult:
        sampler = ALWAYS_OFF if UNSAMPLED in name else ALWAYS_ON
        return sampler.should_sample(parent_context, trace_id, name, *others, **more)

    def get_description(self) -> str:
        return "by name"


@dataclass(frozen=True)
class Way:
    """A way to record a program."""

    settings: Mapping[str, Any]
    """Of ``instrument()``."""
    by_otlp: bool = False
    """Whether spans are sent as OTLP, and not given to span processors."""


WAYS: Mapping[str, Way] = {
    "defaults": Way({}),
    "defaults by OTLP": Way({}, by_otlp=True),
    "few spans": Way({"span_budget": 16, "detail": "low"}),
    "every range": Way({"detail": "all", "span_names": "torch"}),
    "every range by OTLP": Way({"detail": "all"}, by_otlp=True),
    "low": Way({"detail": "low"}),
}
EACH_WAY = [way for way in WAYS if way != "low"]
"""Those in which each program is recorded."""


def outputs_of(program: Program, way: Way, folder: Path) -> Outputs:
    """Run the program once.

    Args:
        program: what runs.
        way: how it is recorded.
        folder: an empty one, for the files.
    """
    exporter = InMemorySpanExporter()
    sink = InMemorySink(1_000_000)
    reader = InMemoryMetricReader()
    provider = TracerProvider(sampler=ParentBased(ByName()), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    chrome, profile_chrome, report = [
        folder / name for name in ("trace.json.gz", "profile.trace.json", "profile.json")
    ]
    instrumentor = OtelRecordFunctionInstrumentor()
    profiled = profile()
    settings = {
        "tracer_provider": provider,
        "meter_provider": MeterProvider([reader], shutdown_on_exit=False),
        "chrome_trace": chrome,
        "sinks": [sink],
        "roots_per_second": None,
        "exit_timeout_s": PATIENCE_S,  # of workers
        **way.settings,
    }
    with OtlpServer("http") if way.by_otlp else contextlib.nullcontext() as server:
        if server is not None:
            settings["span_exporter"] = OTLPSpanExporter(endpoint=server.endpoint)
        instrumentor.instrument(**settings)
        try:
            afterwards, legacy = _run_profiled(program, provider.get_tracer(PROGRAM), profiled)
        finally:
            instrumentor.uninstrument()
        if afterwards is not None:
            assert next(afterwards, "the end") == "the end"
        spans = otlp_spans(server) if server is not None else []
    spans += [from_sdk_span(span) for span in exporter.get_finished_spans()]
    profiled.export_chrome_trace(profile_chrome)
    profiled.report(report)
    events = sink.events()
    return Outputs(
        events={event.event_id: event for event in events if event.kind.name == "RANGE"},
        marks=sum(event.kind.name != "RANGE" for event in events),
        spans=spans,
        chrome=chrome_trace_in(chrome),
        children_chrome=[
            chrome_trace_in(path) for path in sorted(folder.glob("trace.pid*.json.gz"))
        ],
        profile=profiled,
        profile_chrome=chrome_trace_in(profile_chrome),
        profile_report=report_sums(json.loads(report.read_text())),
        legacy=legacy,
        metrics=_points(reader),
        counters=instrumentor.counters(),
    )


def _run_profiled(
    program: Program, tracer: Tracer, profiled: profile
) -> tuple[Iterator[None] | None, Any]:
    """Run the program up to its ``yield``: what is left of it, and what the legacy profiler
    recorded.
    """
    with profiled:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
        try:
            afterwards = program(tracer)
            if afterwards is not None:
                next(afterwards)
        finally:
            legacy = disable_profiler_legacy()
    return afterwards, legacy


def _points(reader: InMemoryMetricReader) -> dict[str, Sequence[Any]]:
    data = reader.get_metrics_data()
    resources = data.resource_metrics if data is not None else ()
    metrics = [
        metric for each in resources for scope in each.scope_metrics for metric in scope.metrics
    ]
    return {metric.name: list(metric.data.data_points) for metric in metrics}


# --- what follows from what they say


def ancestors(events: Mapping[int, Any], event_id: int) -> Iterator[int]:
    """The ranges around a range, the innermost first."""
    parent = events[event_id].parent
    while parent in events:
        yield parent
        parent = events[parent].parent


def ancestors_in_span(events: Mapping[int, Any], event_id: int) -> Iterator[int]:
    """The ranges around a range up to the next span of the program's, the innermost first."""
    while events[event_id].root != event_id and events[event_id].parent in events:
        event_id = events[event_id].parent
        yield event_id


def enclosing_slices(slices: Mapping[int, Slice]) -> dict[int, int]:
    """Of each slice that nests, the innermost one of its thread that it lies in; 0 if there is
    none.

    By event id.
    """
    found: dict[int, int] = {}
    by_thread = defaultdict[int, list[int]](list)
    for event_id, each in slices.items():
        if each.nests:
            by_thread[each.thread].append(event_id)
    for event_ids in by_thread.values():
        event_ids.sort(key=lambda one: (slices[one].start_ns, -slices[one].end_ns, one))
        open_ids: list[int] = []
        for event_id in event_ids:
            while open_ids and slices[open_ids[-1]].end_ns < slices[event_id].end_ns:
                open_ids.pop()
            while (
                open_ids
                and slices[open_ids[-1]].end_ns
                <= slices[event_id].start_ns
                < slices[event_id].end_ns
            ):
                open_ids.pop()
            found[event_id] = open_ids[-1] if open_ids else 0
            open_ids.append(event_id)
    return found


def union_ns(stretches: Iterable[tuple[int, int]]) -> int:
    """The length of what lies in one of the stretches at least."""
    total = 0
    reached = 0
    for start_ns, end_ns in sorted(stretches):
        total += max(0, end_ns - max(start_ns, reached))
        reached = max(reached, end_ns)
    return total


def self_ns_by_backend(span: Span, children: Iterable[Span]) -> int:
    """A span's own time as Jaeger, Tempo and Grafana reckon it: its length less the union of its
    children.
    """
    inside = [
        (max(each.start_ns, span.start_ns), min(each.end_ns, span.end_ns)) for each in children
    ]
    return span.duration_ns - union_ns([(start, end) for start, end in inside if start < end])
