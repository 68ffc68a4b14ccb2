"""Spans, Chrome file, memory and counters tell the same of the same run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_recfn import record_function
from otel_recfn.model.batch import Event
from otel_recfn.model.counters import losses
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.support.span_ids import span_id

torch = pytest.importorskip("torch")
from helpers.perfetto_ui import ask_perfetto  # noqa: E402
from helpers.torch_programs import Training, run_together, scripted_programs  # noqa: E402

pytestmark = pytest.mark.torch


class Exported:
    """A provider with an exporter in memory."""

    def __init__(self, **keywords: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **keywords)
        self.provider.add_span_processor(BatchSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")

    def spans(self) -> dict[int, ReadableSpan]:
        """Ours, by event id."""
        self.provider.force_flush()
        found = [
            span
            for span in self.exporter.get_finished_spans()
            if "recfn.event_id" in (span.attributes or {})
        ]
        by_event = {span.attributes["recfn.event_id"]: span for span in found}
        assert len(found) == len(by_event)
        return by_event


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.provider.shutdown()


def chrome_names(path: Path) -> Counter[tuple[int, str]]:
    """Event id and name of every range in a Chrome file (an asynchronous one has a begin and an
    end).
    """
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ours = [
        event for event in events if event["ph"] in ("X", "b") and "span_id" not in event["args"]
    ]
    # Slices around training steps are no ranges.
    ranges = [event for event in ours if "recfn.step.number" not in event["args"]]
    return Counter((event["args"]["Event id"], event["name"]) for event in ranges)


def memory_names(events: list[Event]) -> Counter[tuple[int, str]]:
    return Counter((event.event_id, event.name) for event in events)


def span_names(spans: dict[int, ReadableSpan]) -> Counter[tuple[int, str]]:
    return Counter((event_id, span.name) for event_id, span in spans.items())


def train_and_script() -> None:
    """Every kind of range: two trainings at once, ours with an error, TorchScript that goes on
    on other threads.
    """
    network, fork_and_wait = scripted_programs()
    with record_function("ours"):
        for _ in range(3):
            network(torch.ones(2, 3)), fork_and_wait(torch.ones(2, 3))
        Training().step()
    with pytest.raises(ValueError, match="no"), record_function("fails"):
        raise ValueError("no")


def test_one_run_in_three_places(
    instrument: Callable[..., Any], exported: Exported, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json.gz"
    provider = exported.provider
    ours = instrument(
        tracer_provider=provider,
        span_budget=None,
        chrome_trace=path,
        roots_per_second=None,
        span_names="torch",
    )
    with exported.tracer.start_as_current_span("the user's"):
        train_and_script()
    events = ours.finish()
    names = memory_names(events)
    assert names == chrome_names(path)
    assert {event.source for event in events} == set(EventSource) - {
        EventSource.STEP,  # its span is the program's
        EventSource.PYTHON_CALL,  # nobody asked for them
        EventSource.COMPILATION,  # nothing is compiled
    }
    assert sum(names.values()) > 400
    counters = ours.counters()
    assert len([name for name in counters if not name.startswith("in_memory")]) == 15
    assert losses(counters) == {}
    assert counters["recorded"] + counters["added"] == counters["exported"]
    assert counters["recorded"] <= len(events)  # of which some are no ranges
    assert names == span_names(exported.spans())


SLICES = """
    select extract_arg(slice.arg_set_id, 'args.Event id'),
        extract_arg(parent.arg_set_id, 'args.Event id'), slice.name, slice.ts, slice.dur
    from slice join thread_track on slice.track_id = thread_track.id
        left join slice parent on slice.parent_id = parent.id
    where slice.name not glob 'ProfilerStep#*'
"""


BESIDE = """
    select extract_arg(arg_set_id, 'args.Event id') from slice
    where track_id not in (select id from thread_track)
"""


COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def test_perfetto_nests_as_we_do(instrument: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    ours = instrument(chrome_trace=path, record_shapes=True)
    run_together(train_and_script, Training().step)
    recorded = {event.event_id: event for event in ours.finish()}
    base_ns = json.loads(gzip.decompress(path.read_bytes()))["baseTimeNanoseconds"]
    slices, beside, complaints = ask_perfetto(path, SLICES, BESIDE, COMPLAINTS)
    assert not complaints
    assert len(slices) + len(beside) == len(recorded) > 800
    apart = {event_id for (event_id,) in beside}
    for event_id, parent, name, ts, duration in slices:
        event = recorded[event_id]
        assert (name, ts + base_ns, duration) == (event.name, event.start_ns, event.duration_ns)
        on_its_thread = event.parent and recorded[event.parent].thread == event.thread
        if event.parent not in apart:
            assert (parent or 0) == (event.parent if on_its_thread else 0)


def test_in_a_span_of_the_user(instrument: Callable[..., Any], exported: Exported) -> None:
    """Parents in spans are those in memory, and the outermost ones are the user's span."""
    ours = instrument(tracer_provider=exported.provider, span_budget=None)
    works: list[tuple[Training, str]] = [(Training(), f"request {number}") for number in range(2)]
    ours.forget()

    def serve(training: Training, name: str) -> None:
        with exported.tracer.start_as_current_span(name):
            training.step()

    run_together(*(lambda work=work: serve(*work) for work in works))
    events = ours.finish()
    spans = exported.spans()
    everything = exported.exporter.get_finished_spans()
    requests = {
        span.context.span_id: span for span in everything if span.name.startswith("request")
    }
    assert len(requests) == 2
    inside = [event for event in events if event.context.span_id]
    assert len(inside) > 400
    for event in inside:
        span = spans[event.event_id]
        request = requests[event.context.span_id]
        assert span.context.span_id == span_id(event.event_id)
        assert span.parent.span_id == (
            span_id(event.parent) if event.parent else request.context.span_id
        )
        assert (
            span.context.trace_id
            == span.parent.trace_id
            == request.context.trace_id
            == event.context.trace_id
        )
        assert (span.start_time, span.end_time) == (event.start_ns, event.end_ns)
        assert span.attributes["recfn.scope"] == event.scope.name
        assert span.attributes["recfn.thread_id"] == event.thread_id
        assert span.attributes.get("recfn.sequence_nr", -1) == event.sequence_nr
        assert span.attributes["recfn.handle"] == event.handle
    assert {event.context.span_id for event in inside if event.parent == 0} == set(requests)


def test_backward_links_to_forward(instrument: Callable[..., Any], exported: Exported) -> None:
    ours = instrument(tracer_provider=exported.provider, span_budget=None)
    with exported.tracer.start_as_current_span("the user's"):
        Training().step()
    events = ours.finish()
    spans = exported.spans()
    by_span = {span.context.span_id: event_id for event_id, span in spans.items()}
    by_id = {event.event_id: event for event in events}
    linked = 0
    for event in events:
        for link in spans[event.event_id].links:
            linked += 1
            forward = by_id[by_span[link.context.span_id]]
            assert event.scope == RecordScope.BACKWARD_FUNCTION
            assert (forward.sequence_nr, forward.thread_id) == (
                event.sequence_nr,
                event.forward_thread_id,
            )
            assert forward.start_ns <= event.start_ns
    nodes = [
        event
        for event in events
        if event.scope == RecordScope.BACKWARD_FUNCTION and event.sequence_nr >= 0
    ]
    assert linked == len(nodes) > 10


def test_a_parent_that_is_not_sampled(instrument: Callable[..., Any], tmp_path: Path) -> None:
    exported = Exported(sampler=ALWAYS_OFF)
    path = tmp_path / "trace.json.gz"
    ours = instrument(tracer_provider=exported.provider, span_budget=None, chrome_trace=path)
    ours.forget()
    with exported.tracer.start_as_current_span("not sampled"):
        torch.relu(torch.ones(3))
    torch.relu(torch.ones(3))
    events = ours.finish()
    assert [event.name for event in events].count("aten::relu") == 2
    assert exported.spans() == {}
    assert memory_names(events) == chrome_names(path)
    assert ours.counters()["unsampled"] == ours.counters()["recorded"]
    exported.provider.shutdown()
