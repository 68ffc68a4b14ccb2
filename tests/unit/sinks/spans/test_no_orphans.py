"""Whatever ends or fails in the middle of a batch, no span is sent whose parent isn't, and every row is counted once.

The ranges: an outer one with a middle one in it, and leaves in both, whose rows come in three batches; the outer one's
row comes last, and after the middle one's some that began in it late. Once below a span of the program, once below a root of
ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from batches import BASE_NS, context, make_batch
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks import background_pace
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.background_pace import RESERVE_S
from otel_recfn.sinks.spans import batch_writing, delivery, mapping, pending, provider
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.support.own_thread import OwnThread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

REQUEST = context(trace_id=0xABC, span_id=0xDEF)
RESOURCE = Resource({})  # each provider would look for one anew
OUTER, MIDDLE, LATE = (make_event_id(1, number) for number in (1, 2, 3))
NO_MEMORY_FOR = (1, 2, 4, 12)
"""How many spans in a row find no memory: with many the last resort, single spans, finds none either."""


def program(ref: SpanContextRef) -> list[Batch]:
    """Three batches."""
    numbers = iter(range(10, 1000))

    def row(parent: int, event_id: int = 0, name: str = "leaf") -> dict[str, Any]:
        own = event_id or make_event_id(1, next(numbers))
        begun = {"start_ns": BASE_NS + (own & 0xFFFF), "end_ns": BASE_NS + 10_000}
        return {"event_id": own, "parent": parent, "root": OUTER, "context": ref, "name": name, **begun}

    rows = [
        [row(MIDDLE), row(MIDDLE), row(OUTER), row(LATE)],
        [row(MIDDLE), row(OUTER), row(OUTER, MIDDLE, "middle"), row(MIDDLE), row(OUTER)],
        [row(MIDDLE), row(LATE), row(MIDDLE, LATE, "late"), row(OUTER), row(LATE), row(0, OUTER, "outer")],
    ]
    opened = [{"event_id": OUTER, "name": "outer"}] if ref is NO_CONTEXT else []
    return [make_batch(each, opened if number == 0 else []) for number, each in enumerate(rows)]


ROWS = 15


class Sent(SpanProcessor):
    """Keeps the spans that it is given, and calls ``then`` at each."""

    def __init__(self, then: Callable[[int], None] = lambda count: None) -> None:
        self.spans: list[ReadableSpan] = []
        self.then = then

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)
        self.then(len(self.spans))

    def assert_no_orphans(self) -> None:
        there = {(span.context.trace_id, span.context.span_id) for span in self.spans} | {REQUEST[:2]}
        assert len(there) == len(self.spans) + 1, "a span was sent twice"
        orphans = [span.name for span in self.spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]
        assert orphans == []


class Gate:
    """Lets a sink's first batch wait until all are queued."""

    def __init__(self, sink: SpansSink) -> None:
        self.opened = threading.Event()
        self._write = sink.write
        sink.write = self.write  # type: ignore[method-assign]

    def write(self, batch: Batch) -> None:
        assert self.opened.wait(PATIENCE_S)
        self._write(batch)


def new_provider(*processors: SpanProcessor) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False, resource=RESOURCE)
    for processor in processors:
        made.add_span_processor(processor)
    return made


def assert_balanced(counters: Mapping[str, int], received: int) -> None:
    fates = ("spans", "unsampled", "suppressed", "no_provider", "other_kinds", "failed")
    assert counters["rows"] + counters["roots"] == sum(counters[fate] for fate in fates)
    lost = sum(counters.get(name, 0) for name in ("queue_dropped", "queued", "abandoned"))
    assert counters["rows"] + lost == received
    assert min(counters.values()) >= 0


def end_of_threads() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, OwnThread):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture(params=[1, 2, 256], ids=lambda size: f"chunks of {size}")
def chunk_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(provider, "MAX_CHUNK", request.param)
    return int(request.param)


@pytest.fixture(params=[REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"])
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    return program(request.param)


@pytest.mark.usefixtures("chunk_size")
class TestTimeEnds:
    @pytest.mark.parametrize("last", range(1, ROWS + 2))
    def test_after_any_span_by_a_close_in_a_span_processor(self, batches: list[Batch], last: int) -> None:
        sent = Sent(lambda count: sink.close(0.0) if count == last else None)
        inner = SpansSink(new_provider(sent))
        gate, sink = Gate(inner), BackgroundSink(inner, max_share=1.0)
        for batch in batches:
            sink.write(batch)
        gate.opened.set()
        if last > ROWS:
            sink.close(PATIENCE_S)
        end_of_threads()
        sent.assert_no_orphans()
        assert len(sent.spans) >= min(last, ROWS)
        assert_balanced(sink.counters(), ROWS)

    @pytest.mark.parametrize("last", range(1, ROWS + 1))
    def test_after_any_span_while_the_program_waits_in_close(
        self, batches: list[Batch], last: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        sent = Sent(lambda count: now.__setitem__(0, (PATIENCE_S - RESERVE_S / 2) * (count >= last)))
        inner = SpansSink(new_provider(sent))
        gate, sink = Gate(inner), BackgroundSink(inner, max_share=1.0)
        monkeypatch.setattr(background_pace.time, "monotonic", lambda: now[0])
        wait = OwnThread.wait_for_end
        monkeypatch.setattr(OwnThread, "wait_for_end", lambda *arguments: (gate.opened.set(), wait(*arguments)))
        for batch in batches:
            sink.write(batch)
        sink.close(PATIENCE_S)
        end_of_threads()
        sent.assert_no_orphans()
        assert_balanced(sink.counters(), ROWS)


class Without:
    """Makes of something that there is no memory for it the k-th time, and some times after."""

    def __init__(self, made: Callable[..., Any], first: int, times: int) -> None:
        self.made, self.failing, self.count = made, range(first, first + times), 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.count += 1
        if self.count in self.failing:
            raise MemoryError
        return self.made(*arguments, **keywords)


@pytest.mark.usefixtures("chunk_size")
@pytest.mark.parametrize("times", NO_MEMORY_FOR)
class TestMemoryEnds:
    def written(self, sink: SpansSink, batches: list[Batch], without: Without) -> Mapping[str, int]:
        """There is memory again at the end."""
        for batch in batches:
            sink.write(batch)
        without.failing = range(0)
        sink.close(PATIENCE_S)
        return sink.counters()

    @pytest.mark.parametrize("first", range(1, ROWS + 2))
    def test_at_any_span(self, batches: list[Batch], first: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        without = Without(mapping.ReadableSpan, first, times)
        monkeypatch.setattr(mapping, "ReadableSpan", without)
        sent = Sent()
        counters = self.written(SpansSink(new_provider(sent)), batches, without)
        sent.assert_no_orphans()
        assert_balanced(counters, ROWS)
        assert counters["spans"] == len(sent.spans)

    def test_for_many_batches(self, batches: list[Batch], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        numbers = range(1, 50 * times + 1)
        others = [make_batch([{"event_id": make_event_id(2, number), "context": REQUEST}]) for number in numbers]
        without = Without(batch_writing.fates_of, 2, 10**6)
        monkeypatch.setattr(batch_writing, "fates_of", without)
        sent = Sent()
        counters = self.written(SpansSink(new_provider(sent)), [batches[0], *others, *batches[1:]], without)
        sent.assert_no_orphans()
        assert_balanced(counters, ROWS + len(others))

    @pytest.mark.parametrize(
        ("module", "step"), [(batch_writing, "fates_of"), (batch_writing, "plan_spans"), (pending, "merged")]
    )
    def test_after_the_time(
        self, batches: list[Batch], module: ModuleType, step: str, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = Sent()
        sink = SpansSink(new_provider(sent))
        sink.write(batches[0])
        without = Without(getattr(module, step), 1, times)
        monkeypatch.setattr(module, step, without)
        sink.give_up(batches[1:], PATIENCE_S)
        self.written(sink, [], without)
        sent.assert_no_orphans()

    @pytest.mark.parametrize("step", ["fates_of", "plan_spans"])
    @pytest.mark.parametrize("first", range(1, 5))
    def test_at_any_step(
        self, batches: list[Batch], step: str, first: int, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without = Without(getattr(batch_writing, step), first, times)
        monkeypatch.setattr(batch_writing, step, without)
        sent = Sent()
        counters = self.written(SpansSink(new_provider(sent)), batches, without)
        sent.assert_no_orphans()
        assert_balanced(counters, ROWS)


class Fussy(SpanProcessor):
    """Raises at spans of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == self.name:
            raise KeyError(self.name)


@pytest.mark.parametrize("name", ["leaf", "middle", "outer"])
def test_a_processor_that_raises_keeps_a_span_from_no_other(batches: list[Batch], name: str) -> None:
    sent = Sent()
    sink = SpansSink(new_provider(Fussy(name), sent))
    for batch in batches:
        sink.write(batch)
    sink.close(PATIENCE_S)
    assert len(sent.spans) == ROWS + sink.counters()["roots"]
    sent.assert_no_orphans()


class Slow(SpanProcessor):
    """Holds spans until it is flushed, which takes longer than there is time for, every time but each third."""

    def __init__(self) -> None:
        self.held = self.most = self.flushes = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.held += 1
        self.most = max(self.most, self.held)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.flushes += 1
        clock.now += timeout_millis / 1000 + 1
        if self.flushes % 3 == 0:
            self.held = 0
        return self.held == 0


class Clock:
    now = 0.0


clock = Clock()


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery.time, "monotonic", lambda: clock.now)


@pytest.mark.usefixtures("slow_clock")
def test_processors_that_need_long_get_no_more_than_they_hold(chunk_size: int) -> None:
    slow = Slow()
    sink = SpansSink(new_provider(slow))
    sink.write(make_batch([{"context": REQUEST}] * (3 * chunk_size + 1)))
    assert slow.most <= chunk_size
    assert sink.counters()["spans"] == 3 * chunk_size + 1
