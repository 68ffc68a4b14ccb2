"""What work around which the program has no span is called, and where it belongs."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from spans_harness import Harness

from helpers.batches import BASE_NS, context, make_batch
from otel_recfn.model.batch import NO_CONTEXT
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import program_spans
from otel_recfn.sinks.spans.process_context import FindsWorker, ProcessContext
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.support.processes import ParentProcessSpan, WorkerProcess

pytestmark = pytest.mark.one_python


def begun(span_id: int, start_ns: int) -> ReadableSpan:
    return ReadableSpan("epoch", trace.SpanContext(1, span_id, False), start_time=start_ns)


def in_child(find_worker: FindsWorker = lambda: None) -> ProcessContext:
    """Of a process that was forked in span 2, and has begun span 3."""
    spans = ProgramSpans()
    began_ns = time.time_ns()
    spans.start_empty()
    spans.note_parent_span(1, 2, begun(2, began_ns - 1))
    spans.note_parent_span(1, 3, begun(3, time.time_ns()))
    return ProcessContext(spans, find_worker)


@pytest.mark.parametrize(
    ("thread", "work"),
    [
        ("MainThread", "MainThread"),
        ("Thread-17 (serve)", "Thread (serve)"),
        ("Thread-17", "Thread"),
        ("ThreadPoolExecutor-0_3", "ThreadPoolExecutor"),
        ("asyncio_2", "asyncio"),
        ("loader-3", "loader-3"),
        ("my Thread-1", "my Thread-1"),
        ("", "operators"),
    ],
)
def test_work_is_called_after_its_thread_without_the_numbers_that_python_gives(
    thread: str, work: str
) -> None:
    assert ProcessContext(ProgramSpans()).name(thread) == work


def test_in_a_worker_only_spans_of_its_own_are_around_its_ranges() -> None:
    batch = make_batch([{"context": context(1, 2)}, {"context": context(1, 3)}])
    assert in_child().without_inherited(batch) is batch
    seen = in_child(lambda: WorkerProcess("worker", True)).without_inherited(batch)
    assert [event.context for event in seen.events()] == [NO_CONTEXT, context(1, 3)]


def test_a_process_may_become_a_worker_later() -> None:
    found: list[WorkerProcess | None] = [None]
    process_context = in_child(lambda: found[0])
    assert not process_context.is_outside(1, 2)
    found[0] = WorkerProcess("worker", True)
    assert process_context.is_outside(1, 2)
    found[0] = None
    assert process_context.name("MainThread") == "worker"


@pytest.mark.parametrize(
    ("worker", "goes_on"),
    [
        (None, True),
        (WorkerProcess("worker", single_caller=True), True),
        (WorkerProcess("worker", single_caller=False), False),
    ],
)
def test_a_step_in_the_span_of_the_parent_process_lies_where_other_work_does(
    worker: WorkerProcess | None, goes_on: bool
) -> None:
    spans = ProgramSpans()
    provider = TracerProvider(shutdown_on_exit=False)
    epoch = provider.get_tracer("program").start_span("epoch")
    spans.start_empty()  # as after a fork
    process_context = ProcessContext(spans, lambda: worker)
    target = ProviderResolver(provider).resolve()
    assert target is not None
    with trace.use_span(epoch):
        span = process_context.start_step(target, "decode", {}, time.time_ns())
    assert isinstance(span, ReadableSpan)
    outer = epoch.get_span_context()
    assert (span.parent is not None and span.parent.span_id == outer.span_id) == goes_on
    assert (span.context.trace_id == outer.trace_id) == goes_on
    assert [link.context for link in span.links] == ([] if goes_on else [outer])


LAUNCHER = f"00-{0xABC:032x}-{0xDEF:016x}-01"


@pytest.mark.parametrize("carried", [LAUNCHER, "", "nonsense", LAUNCHER.replace("abc", "000")])
def test_a_trace_that_the_launcher_began_goes_on_here(
    carried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", carried)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    harness = Harness(roots_per_second=0)
    rows = [
        {"event_id": make_event_id(1, number), "start_ns": BASE_NS + number * 10**10}
        for number in range(1, 121)
    ]
    spans = harness.write(
        *rows, opened=[{name: row[name] for name in ("event_id", "start_ns")} for row in rows]
    )
    roots = [span for span in [*spans, *harness.close()] if span.name == "MainThread"]
    assert {(span.attributes or {}).get("recfn.root") for span in roots} == {
        None if carried == LAUNCHER else True
    }
    if carried == LAUNCHER:
        assert {
            (span.context.trace_id, span.parent.span_id, span.parent.is_remote) for span in roots
        } == {(0xABC, 0xDEF, True)}
        assert {span.parent.trace_state.get("vendor") for span in roots} == {"1"}
    else:
        assert {span.parent for span in roots} == {None}
    assert (len(roots), harness.sink.counters()["unsampled"]) == (100, 20)  # as others


def test_a_fork_of_an_instrumented_fork_server_learns_late_what_it_was_made_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Since CPython 3.14 the server may have imported the program: all of ours is there when the
    child hears of its parent.
    """
    spans = ProgramSpans()
    spans.start_empty()
    assert spans.origin_span is None
    monkeypatch.setattr(
        program_spans, "parent_process_span", lambda: ParentProcessSpan(7, 8, 1, "")
    )
    assert spans.origin_span is not None
    assert (spans.origin_span.trace_id, spans.origin_span.span_id) == (7, 8)
    batch = make_batch([{"context": context(7, 8)}])
    worker = WorkerProcess("DataLoader worker 0", single_caller=True)
    assert [*ProcessContext(spans, lambda: worker).without_inherited(batch).contexts] == [
        NO_CONTEXT,
        NO_CONTEXT,
    ]


def tracer_heard_by(spans: ProgramSpans) -> trace.Tracer:
    """A tracer the ends of whose spans are noted."""

    class Heard(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            spans.ended(span)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Heard())
    return provider.get_tracer("program")


def test_a_span_that_ended_is_remembered_as_it_was_then_and_not_kept_alive() -> None:
    spans = ProgramSpans()
    span = tracer_heard_by(spans).start_span("request")
    ids = span.get_span_context().trace_id, span.get_span_context().span_id
    spans.note_parent_span(*ids, span)
    assert spans.span_end(*ids) is None
    span.end()
    living = weakref.ref(span)
    del span
    gc.collect()
    assert living() is None
    end = spans.span_end(*ids)
    assert end is not None
    assert end.name == "request"


def test_a_span_below_which_nothing_ran_is_not_remembered() -> None:
    spans = ProgramSpans()
    span = tracer_heard_by(spans).start_span("request")
    span.end()
    assert spans.find(span.get_span_context().trace_id, span.get_span_context().span_id) is None
