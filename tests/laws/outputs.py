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
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
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
from output_readers import (
    chrome_ranges,
    chrome_trace_in,
    event_range,
    from_sdk_span,
    legacy_ranges,
    otlp_spans,
    span_range,
    sums_by_name,
    tree_sums,
)
from output_values import PROGRAM, ChromeTrace, Ranges, Report, Span, Sums, SumsByName, has_flag
from outputs_programs import UNSAMPLED, Program

from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile
from otel_recfn.legacy import (
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
)


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
    profile_report: Report
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
            "profile": {event_id: event_range(event) for event_id, event in self.profiled.items()},
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
            "report of the profile": self.profile_report.sums,
            "report of the Chrome trace": self.chrome.report.sums,
            "report of the profile's Chrome trace": self.profile_chrome.report.sums,
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
        profile_report=Report(json.loads(report.read_text())),
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
