"""A provider's own ``force_flush()`` and ``shutdown()`` deliver what was recorded before them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers import source_calls
from helpers.forked_work import in_child
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.processor import OwnSpanProcessor
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.support.span_log import SCOPE_NAME

RANGES = 20
CALLS: list[Callable[[TracerProvider], Any]] = [
    lambda provider: provider.force_flush(),
    lambda provider: provider.shutdown(),
]
NAMES = ["force_flush", "shutdown"]


class Exporting:
    """A provider with so many batch processors."""

    def __init__(self, processors: int = 1) -> None:
        self.exporters = [InMemorySpanExporter() for _ in range(processors)]
        self.provider = TracerProvider(shutdown_on_exit=False)
        for exporter in self.exporters:
            self.provider.add_span_processor(
                BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)
            )

    def ranges(self) -> list[int]:
        """How many ranges have arrived at each exporter, as spans or in sums."""
        return [arrived_at(exporter) for exporter in self.exporters]


def arrived_at(exporter: InMemorySpanExporter) -> int:
    """How many ranges, as spans or in sums."""
    attributes = [span.attributes or {} for span in exporter.get_finished_spans()]
    return sum(
        ("recfn.event_id" in each) + each.get("recfn.unit.folded.count", 0) for each in attributes
    )


@pytest.fixture
def exporting() -> Iterator[Callable[..., Exporting]]:
    """Makes providers whose processors' threads end with the test."""
    made: list[Exporting] = []

    def make(processors: int = 1) -> Exporting:
        made.append(Exporting(processors))
        return made[-1]

    yield make
    for each in made:
        each.provider.shutdown()


@pytest.fixture
def instrument() -> Iterator[Callable[..., None]]:
    instrumentor = OtelRecordFunctionInstrumentor()
    yield lambda **settings: instrumentor.instrument(**settings)
    instrumentor.uninstrument()


def request(provider: TracerProvider) -> None:
    with provider.get_tracer("program").start_as_current_span("request"):
        for number in range(RANGES):
            with record_function(f"range {number}"):
                pass


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
@pytest.mark.parametrize("processors", [1, 2])
def test_what_ended_before_it_is_delivered(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    call: Callable[[TracerProvider], Any],
    processors: int,
) -> None:
    where = exporting(processors)
    instrument(tracer_provider=where.provider)
    request(where.provider)
    assert call(where.provider) in (True, None)
    assert where.ranges() == [RANGES] * processors


class Local(Sink):
    """A sink beside the spans', as one with a file, whose flush would take all the time that it
    is given.
    """

    name = "local"

    def __init__(self) -> None:
        self.asked: list[float] = []

    def write(self, batch: Batch) -> None:
        pass

    def flush(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        return False

    def close(self, timeout_s: float) -> None:
        pass


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_it_waits_for_nothing_but_spans(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    call: Callable[[TracerProvider], Any],
) -> None:
    where = exporting()
    local = Local()
    instrument(tracer_provider=where.provider, sinks=[local])
    request(where.provider)
    assert call(where.provider) in (True, None)
    assert where.ranges() == [RANGES]
    assert local.asked == []
    assert not flush(where.provider)  # as it asks all sinks
    assert len(local.asked) == 1


def flush(_provider: TracerProvider) -> bool:
    return OtelRecordFunctionInstrumentor().flush(PATIENCE_S)


@pytest.mark.parametrize(
    ("call", "times"), [(flush, 2), (CALLS[0], 2), (CALLS[1], 1)], ids=["flush", *NAMES]
)
def test_it_delivers_the_trace_of_ours_that_could_still_grow(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    call: Callable[[TracerProvider], Any],
    times: int,
) -> None:
    target = exporting()
    instrument(tracer_provider=target.provider)
    for number in range(1, times + 1):
        for _ in range(RANGES):
            with record_function("below no span"):
                pass
        assert call(target.provider) in (True, None)
        assert target.ranges() == [number * RANGES]
        assert lacking_parents(target) == []
        assert OtelRecordFunctionInstrumentor().counters()["waiting"] == 0


@pytest.mark.parametrize("span", ["", "request"])
@pytest.mark.parametrize("call", [flush, CALLS[0]], ids=["flush", NAMES[0]])
@pytest.mark.parametrize("span_budget", [1000, None])
def test_a_flush_inside_of_a_range_delivers_what_has_ended_there(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    call: Callable[[TracerProvider], Any],
    span: str,
    span_budget: int | None,
) -> None:
    target = exporting()
    instrument(tracer_provider=target.provider, span_budget=span_budget)
    tracer = target.provider.get_tracer("program")
    with tracer.start_as_current_span(span) if span else nullcontext(), record_function("epoch"):
        for number in (1, 2):
            for _ in range(RANGES):
                with record_function("iteration"), record_function("inside"):
                    pass
            assert call(target.provider) is True
            assert target.ranges() == [number * 2 * RANGES]
            assert OtelRecordFunctionInstrumentor().counters()["waiting"] == 0
    assert call(target.provider) is True
    assert target.ranges() == [4 * RANGES + 1]
    assert lacking_parents(target) == []


def lacking_parents(where: Exporting) -> list[str]:
    """The spans whose parents have not arrived."""
    spans = where.exporters[0].get_finished_spans()
    arrived = {span.context.span_id for span in spans}
    return [
        span.name
        for span in spans
        if span.parent is not None and span.parent.span_id not in arrived
    ]


def test_a_provider_that_is_set_late_and_one_that_replaces_it(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = exporting()
    second = exporting()
    instrument()
    for where in (first, second):
        monkeypatch.setattr(trace, "get_tracer_provider", lambda where=where: where.provider)
        request(where.provider)
        where.provider.force_flush()
        assert where.ranges() == [RANGES]
    assert not any(isinstance(each, OwnSpanProcessor) for each in processors_of(first.provider))


def test_an_exporter_that_flushes_while_it_exports_is_not_waited_for(
    instrument: Callable[..., None],
) -> None:
    answers = list[bool]()
    answered = threading.Event()
    flushes = False

    class Flushes(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if flushes:
                answers.append(OtelRecordFunctionInstrumentor().flush(2 * PATIENCE_S))
                answered.set()
            return super().export(spans)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter := Flushes(), schedule_delay_millis=1))
    instrument(tracer_provider=provider)
    request(provider)
    provider.force_flush()
    flushes = True
    request(provider)
    assert answered.wait(PATIENCE_S)
    assert answers[0] is False
    provider.shutdown()
    assert arrived_at(exporter) == 2 * RANGES


def test_calls_of_several_threads(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    where = exporting()
    threads = 8
    instrument(tracer_provider=where.provider)

    def work() -> None:
        request(where.provider)
        where.provider.force_flush()

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert where.ranges() == [threads * RANGES]


def test_in_a_forked_child(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    where = exporting()
    instrument(tracer_provider=where.provider)
    request(where.provider)
    where.provider.force_flush()
    in_child(lambda: flushes_in_child(where))


def flushes_in_child(where: Exporting) -> None:
    where.exporters[0].clear()
    request(where.provider)
    where.provider.force_flush()
    assert where.ranges() == [RANGES]


def processors_of(provider: TracerProvider) -> tuple[SpanProcessor, ...]:
    # The SDK has no other way to ask for them.
    return provider._active_span_processor._span_processors


def is_as_in_its_class(thing: object, *methods: str) -> bool:
    """Whether these methods are those of its class, and bound to it, as a mock or a decorator
    may want them.
    """
    found = [getattr(thing, name) for name in methods]
    return all(
        each.__self__ is thing and each.__name__ == name
        for each, name in zip(found, methods, strict=True)
    )


def test_in_a_child_that_a_span_processor_forks(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    spans = exporting()

    def work_in_child() -> None:
        spans.exporters[0].clear()
        request(spans.provider)
        assert spans.provider.force_flush()
        assert spans.ranges() == [RANGES]

    class Forks(SpanProcessor):
        errors: list[BaseException]

        def on_end(self, span: ReadableSpan) -> None:
            scope = span.instrumentation_scope
            if scope is None or scope.name != SCOPE_NAME or hasattr(self, "errors"):
                return
            self.errors = []  # in the child, too: it forks no more
            try:
                in_child(work_in_child)
            except BaseException as error:
                self.errors.append(error)

    forks = Forks()
    spans.provider.add_span_processor(forks)
    instrument(tracer_provider=spans.provider)
    request(spans.provider)
    assert spans.provider.force_flush()
    assert forks.errors == []
    assert spans.ranges() == [RANGES]


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_no_object_of_the_programs_is_changed_but_for_the_list_of_processors(
    exporting: Callable[..., Exporting], call: Callable[[TracerProvider], Any]
) -> None:
    where = exporting(2)
    instrumentor = OtelRecordFunctionInstrumentor()
    before = processors_of(where.provider)
    objects = [where.provider, *before, *where.exporters]
    attributes = [set(vars(each)) for each in objects]

    def check() -> None:
        assert is_as_in_its_class(where.provider, *NAMES)
        assert all(is_as_in_its_class(each, "on_end", *NAMES) for each in before)
        assert all(is_as_in_its_class(each, "export", *NAMES) for each in where.exporters)
        assert [set(vars(each)) for each in objects] == attributes

    instrumentor.instrument(tracer_provider=where.provider)
    request(where.provider)
    check()
    [ours, *others] = processors_of(where.provider)
    assert isinstance(ours, OwnSpanProcessor)
    assert tuple(others) == before
    where.provider.add_span_processor(later := SpanProcessor())
    call(where.provider)
    check()
    instrumentor.uninstrument()
    check()
    assert processors_of(where.provider) == (*before, later)


def test_threads_that_switch_it_on_and_off_leave_nothing_on(
    exporting: Callable[..., Exporting],
) -> None:
    where = exporting()
    instrumentor = OtelRecordFunctionInstrumentor()
    processors = processors_of(where.provider)

    def switch() -> None:
        for _ in range(10):
            instrumentor.instrument(tracer_provider=where.provider)
            instrumentor.uninstrument()

    threads = [threading.Thread(target=switch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    instrumentor.uninstrument()
    assert not source_calls.recording()
    assert processors_of(where.provider) == processors


def test_a_mock_as_exporter_stays_one(instrument: Callable[..., None]) -> None:
    exporter = MagicMock(spec=SpanExporter)
    exporter.export.return_value = SpanExportResult.SUCCESS
    provider = TracerProvider(shutdown_on_exit=False)
    instrumentor = OtelRecordFunctionInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    request(provider)
    assert instrumentor.flush(PATIENCE_S)
    exporter.export.assert_called()
    instrumentor.uninstrument()
    calls = exporter.export.call_count
    provider.get_tracer("program").start_span("later").end()
    assert exporter.export.call_count == calls + 1


def test_a_processor_that_is_added_later_gets_what_comes_then(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    where = exporting()
    later = InMemorySpanExporter()
    instrument(tracer_provider=where.provider)
    request(where.provider)
    assert where.provider.force_flush()
    where.provider.add_span_processor(BatchSpanProcessor(later, schedule_delay_millis=3_600_000))
    request(where.provider)
    where.provider.shutdown()
    assert (where.ranges(), arrived_at(later)) == ([2 * RANGES], RANGES)


@pytest.mark.parametrize("threads", [1, 2])
def test_processors_that_are_called_at_once(instrument: Callable[..., None], threads: int) -> None:
    """A flush delivers, also where the only thread that may call them waits for ours.

    A shutdown delivers what was flushed.
    """
    exporters = [InMemorySpanExporter(), InMemorySpanExporter()]
    provider = TracerProvider(
        shutdown_on_exit=False, active_span_processor=ConcurrentMultiSpanProcessor(threads)
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    instrument(tracer_provider=provider)
    request(provider)
    assert provider.force_flush()
    assert list(map(arrived_at, exporters)) == [RANGES, RANGES]
    provider.shutdown()


class Chain(SpanProcessor):
    """A processor of the program's that calls others, and doesn't say which."""

    def __init__(self) -> None:
        self._others: list[SpanProcessor] = []

    def add_span_processor(self, processor: SpanProcessor) -> None:
        self._others.append(processor)

    def on_end(self, span: ReadableSpan) -> None:
        for each in self._others:
            each.on_end(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        flushed = [each.force_flush(timeout_millis) for each in self._others]
        return all(flushed)

    def shutdown(self) -> None:
        for each in self._others:
            each.shutdown()


def test_where_ours_can_only_be_the_last_one_a_flush_delivers(
    instrument: Callable[..., None],
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, active_span_processor=Chain())
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrument(tracer_provider=provider)
    request(provider)
    assert provider.force_flush()
    assert arrived_at(exporter) == RANGES
    instrumentor.uninstrument()
    assert provider.force_flush()
    provider.shutdown()


class FlushedFor:
    """A flush that is asked for so many seconds."""

    def __init__(self, flushed: bool | Exception = True) -> None:
        self.asked: list[float] = []
        self._flushed = flushed

    def __call__(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        if isinstance(self._flushed, Exception):
            raise self._flushed
        return self._flushed


def flushed_by(flush: FlushedFor, *timeout: Any) -> object:
    """What a provider says whose only processor is ours."""
    provider = TracerProvider(shutdown_on_exit=False)
    target = ProviderResolver(provider).resolve()
    assert target is not None
    own = OwnSpanProcessor(lambda span: None, flush)
    own.register(provider, target.multi_processor)
    return provider.force_flush(*timeout)


@pytest.mark.parametrize(("given", "seconds"), [((), 30.0), ((10_000,), 10.0)])
def test_ours_has_the_time_that_the_provider_is_given(
    given: tuple[int, ...], seconds: float
) -> None:
    flush = FlushedFor()
    assert flushed_by(flush, *given) is True
    [asked] = flush.asked
    assert asked == pytest.approx(seconds, abs=seconds / 2)


@pytest.mark.parametrize("flushed", [False, OSError("no")], ids=repr)
def test_it_says_that_all_was_flushed_only_where_it_was(flushed: bool | Exception) -> None:
    assert flushed_by(FlushedFor(flushed)) is False


def test_a_provider_that_was_shut_down_gets_nothing_more(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    where = exporting()
    instrumentor = OtelRecordFunctionInstrumentor()
    instrument(tracer_provider=where.provider)
    request(where.provider)
    where.provider.shutdown()
    exported = instrumentor.counters()["exported"]
    request(where.provider)
    instrumentor.flush(PATIENCE_S)
    counters = instrumentor.counters()
    assert counters["exported"] == exported
    assert counters["dropped.shutdown"] > 0
    assert counters["waiting"] == 0
