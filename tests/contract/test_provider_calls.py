"""A provider's own ``force_flush()`` and ``shutdown()`` deliver what was recorded before them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forked_work import in_child
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.sinks.spans import delivery
from otel_recfn.sinks.spans.delivery import ProviderCalls
from timeouts import PATIENCE_S

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
        ("recfn.scope" in each) + each.get("recfn.unit.folded.count", 0) for each in attributes
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


def test_a_shutdown_delivers_the_trace_of_ours_that_could_still_grow(
    exporting: Callable[..., Exporting], instrument: Callable[..., None]
) -> None:
    target = exporting()
    instrument(tracer_provider=target.provider)
    for _ in range(RANGES):
        with record_function("below no span"):
            pass
    target.provider.shutdown()
    assert target.ranges() == [RANGES]
    assert [span.parent for [span] in [target.exporters[0].get_finished_spans()[:1]]] == [None]


def test_a_provider_that_is_set_late_and_one_that_replaces_it(
    exporting: Callable[..., Exporting],
    instrument: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = exporting(), exporting()
    instrument()
    for where in (first, second):
        monkeypatch.setattr(trace, "get_tracer_provider", lambda where=where: where.provider)
        request(where.provider)
        where.provider.force_flush()
        assert where.ranges() == [RANGES]
    assert not set(NAMES) & set(vars(first.provider))


def test_an_exporter_that_flushes_while_it_exports_is_not_waited_for(
    instrument: Callable[..., None],
) -> None:
    answers, answered, flushes = list[bool](), threading.Event(), False

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
    where, threads = exporting(), 8
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


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_afterwards_the_provider_is_as_it_was(
    exporting: Callable[..., Exporting], call: Callable[[TracerProvider], Any]
) -> None:
    where, instrumentor = exporting(), OtelRecordFunctionInstrumentor()
    where.provider.force_flush = own = lambda timeout_millis=0: False  # type: ignore[method-assign]
    instrumentor.instrument(tracer_provider=where.provider)
    request(where.provider)
    call(where.provider)
    instrumentor.uninstrument()
    assert where.provider.force_flush is own
    assert "shutdown" not in vars(where.provider)
    assert where.provider.force_flush() is False


class TakesTime:
    """A provider, and a flush of ours, on one clock."""

    def __init__(self, ours_s: float, ours: bool = True, own: bool = True) -> None:
        self.now, self.asked = 100.0, list[tuple[str, float]]()
        self._ours_s, self._ours, self._own = ours_s, ours, own

    def flush(self, timeout_s: float) -> bool:
        self.asked.append(("ours", timeout_s))
        self.now += self._ours_s
        return self._ours

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.asked.append(("own", timeout_millis / 1000))
        return self._own

    def shutdown(self) -> None:
        self.asked.append(("shutdown", 0.0))


def watched(provider: TakesTime, monkeypatch: pytest.MonkeyPatch) -> TakesTime:
    monkeypatch.setattr(delivery.time, "monotonic", lambda: provider.now)
    ProviderCalls(provider.flush).watch(provider)
    return provider


@pytest.mark.parametrize(("given", "seconds"), [({}, 30.0), ({"timeout_millis": 10_000}, 10.0)])
def test_both_have_one_time(
    given: dict[str, int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = watched(TakesTime(ours_s=4.0), monkeypatch)
    assert provider.force_flush(**given) is True
    assert provider.asked == [("ours", seconds), ("own", seconds - 4.0)]


@pytest.mark.parametrize(
    ("ours", "own"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_it_says_that_all_was_flushed_only_where_it_was(
    ours: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = watched(TakesTime(ours_s=4.0, ours=ours, own=own), monkeypatch)
    assert provider.force_flush(3_000) is (ours and own)
    assert provider.asked == [("ours", 3.0), ("own", 0.0)]
