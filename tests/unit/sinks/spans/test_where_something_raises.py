"""Whatever raises in the middle of a batch, what was being handled is dropped, every row is counted, and the sink goes on.

What the program gives us raises through its public doors; that a step of ours does is a bug, or for want of memory, and is
played by replacing it.

The ranges: an outer one with a middle one in it, and leaves in both, whose rows come in three batches; the outer one's
row comes last, and after the middle one's some that began in it late. Once below a span of the program, once below a root of
ours.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from batches import BASE_NS, context, make_batch
from otel_recfn.batches.fold.kept_rows import KeptRows
from otel_recfn.model.batch import NO_CONTEXT, Batch, Event, SpanContextRef
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import batch_writing, folding, mapping
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.open_units import OpenUnits
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.surroundings import Surroundings

REQUEST = context(trace_id=0xABC, span_id=0xDEF)
RESOURCE = Resource({})  # each provider would look for one anew
OUTER, MIDDLE, LATE = (make_event_id(1, number) for number in (1, 2, 3))
pytestmark = [
    pytest.mark.one_python,
    pytest.mark.parametrize("ref", [REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"]),
    pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(1000)], ids=["every range", "units"]),
]


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
    """Keeps the spans that it is given."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def assert_no_orphans(self) -> None:
        there = {(span.context.trace_id, span.context.span_id) for span in self.spans} | {REQUEST[:2]}
        assert len(there) == len(self.spans) + 1, "a span was sent twice"
        orphans = [span.name for span in self.spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]
        assert orphans == []


def new_provider(*processors: SpanProcessor) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False, resource=RESOURCE)
    for processor in processors:
        made.add_span_processor(processor)
    return made


FATES = ("unsampled", "suppressed", "no_provider", "other_kinds", "dropped_by_hook", "folded", "folding", "failed", "spans")


@pytest.fixture(autouse=True)
def parts_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_ROWS_OF_A_UNIT", 2)


class Raises:
    """Of something: it raises the k-th time."""

    def __init__(self, made: Callable[..., Any], first: int, error: Exception) -> None:
        self.made, self.left, self.error = made, first, error

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.made(*arguments, **keywords)

    @property
    def was_reached(self) -> bool:
        return self.left <= 0

    def __get__(self, owner: Any, _type: Any = None) -> Any:
        return (lambda *arguments, **keywords: self(owner, *arguments, **keywords)) if owner is not None else self


def play(provider: TracerProvider, sent: Sent, ref: SpanContextRef, **settings: Any) -> Mapping[str, int]:
    sink = SpansSink(provider, **settings)
    for batch in program(ref):
        sink.write(batch)
    sink.idle()
    sink.close(1.0)
    counters = sink.counters()
    came = sum(counters[name] for name in ("rows", "roots", "summaries"))
    assert came == sum(counters[fate] for fate in FATES)
    assert counters["rows"] == ROWS
    assert counters["folding"] == 0
    return counters


STEPS = (
    (batch_writing, "fates_of"),
    (batch_writing, "plan_spans"),
    (mapping, "ReadableSpan"),
    (KeptRows, "take"),
    (KeptRows, "add"),
    (folding, "Summaries"),
    (folding.Folding, "_plan"),
    (OpenUnits, "note"),
    (StepTraces, "advance"),
    (StepTraces, "close_idle"),
    (Surroundings, "without_inherited"),
    (SpanDelivery, "deliver"),
)


@pytest.mark.parametrize("error", [LookupError("a test's"), MemoryError()], ids=["an error", "no memory"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=lambda step: getattr(step, "__name__", step))
def test_a_step_of_ours(
    owner: Any, name: str, error: Exception, volume: Volume, ref: SpanContextRef, caplog: pytest.LogCaptureFixture
) -> None:
    first, reached = 0, True
    while reached:
        first += 1
        caplog.clear()
        sent = Sent()
        with pytest.MonkeyPatch.context() as patch:
            raises = Raises(getattr(owner, name), first, error)
            patch.setattr(owner, name, raises)
            counters = play(new_provider(sent), sent, ref, volume=volume)
        reached = raises.was_reached
        assert caplog.text.count("some rows count as failed") == reached
        assert counters["spans"] == len(sent.spans)
        if not reached:
            sent.assert_no_orphans()


class Fussy(SpanProcessor):
    """Raises at spans of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == self.name:
            raise KeyError(self.name)


@pytest.mark.parametrize("name", ["leaf", "middle", "outer"])
def test_a_processor_that_raises_keeps_a_span_from_no_other(name: str, volume: Volume, ref: SpanContextRef) -> None:
    sent = Sent()
    counters = play(new_provider(Fussy(name), sent), sent, ref, volume=volume)
    assert len(sent.spans) == counters["spans"] >= ROWS
    sent.assert_no_orphans()


class NoNumber(numbers.Integral):
    """Says that it is one."""

    def __int__(self) -> int:
        raise ArithmeticError("a test's")


NoNumber.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", range(1, ROWS + 1))
def test_an_attribute_of_a_hook(first: int, volume: Volume, ref: SpanContextRef) -> None:
    count = 0

    def hook(_event: Event, attributes: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == first:
            attributes["batch"] = NoNumber()  # type: ignore[abstract]

    sent = Sent()
    counters = play(new_provider(sent), sent, ref, volume=volume, hook=hook)
    assert counters["failed"] == 0


class Looked(SpanProcessor):
    """Raises where it is asked for its exporter."""

    def __init__(self, first: int) -> None:
        self.left = first

    @property
    def span_exporter(self) -> object:
        self.left -= 1
        if self.left <= 0:
            raise LookupError("a test's")
        return InMemorySpanExporter()


class Provider(TracerProvider):
    """Raises where it is asked for its resource."""

    left = 1 << 30

    @property
    def resource(self) -> Resource:
        self.left -= 1
        if self.left <= 0:
            raise LookupError("a test's")
        return Resource.get_empty()


@pytest.mark.parametrize("first", range(2, 8))
def test_a_processor_and_a_resource_from_some_time_on(first: int, volume: Volume, ref: SpanContextRef) -> None:
    """They were asked before: spans go on as they went."""
    sent = Sent()
    provider = Provider(shutdown_on_exit=False)
    provider.add_span_processor(sent)
    provider.add_span_processor(Looked(first))
    provider.get_tracer("first")
    provider.left = first
    counters = play(provider, sent, ref, volume=volume)
    assert counters["failed"] == 0
    assert len(sent.spans) >= ROWS


class NoAttributes(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise LookupError(key)

    def __iter__(self) -> Iterator[str]:
        raise LookupError("a test's")

    def __len__(self) -> int:
        return 1


class Samples(Sampler):
    """With attributes that nobody can read."""

    def should_sample(self, *_arguments: Any, **_keywords: Any) -> SamplingResult:
        result = SamplingResult(Decision.RECORD_AND_SAMPLE)
        result.attributes = NoAttributes()
        return result

    def get_description(self) -> str:
        return "a test's"


class Ids(IdGenerator):
    """Too large ones."""

    def generate_span_id(self) -> int:
        return 1 << 64

    def generate_trace_id(self) -> int:
        return 1 << 128


@pytest.mark.parametrize("door", [{"sampler": Samples()}, {"id_generator": Ids()}], ids=["sampler", "id generator"])
def test_what_can_not_be_used_starts_no_trace(door: dict[str, Any], volume: Volume, ref: SpanContextRef) -> None:
    sent = Sent()
    provider = TracerProvider(shutdown_on_exit=False, **door)
    provider.add_span_processor(sent)
    counters = play(provider, sent, ref, volume=volume)
    assert counters["failed"] == 0
    assert len(sent.spans) == (0 if ref is NO_CONTEXT else ROWS)
