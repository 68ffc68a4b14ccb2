"""Whatever raises in the middle of a batch, no span that was sent loses its parent, every row is counted, and the sink goes on.

What the program gives us raises through its public doors; that a step of ours does is a bug, and is played by replacing it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from explored import MEMORY_IS_ASKED_FOR
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from test_no_orphans import OUTER, REQUEST, ROWS, Sent, new_provider, program

from otel_recfn.model.batch import NO_CONTEXT, Event, SpanContextRef
from otel_recfn.sinks.spans import folding, mapping
from otel_recfn.sinks.spans.accounts import Accounts
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.support.span_ids import span_id

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.parametrize("ref", [REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"]),
    pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(1000)], ids=["every range", "units"]),
]

COUNTED_ALONE = ((SpanDelivery, "with_more"), (Accounts, "plus"), (Accounts, "plus_rows"))
"""Steps that only add numbers."""
STEPS = [step for step in MEMORY_IS_ASKED_FOR if step not in COUNTED_ALONE]
FATES = ("unsampled", "suppressed", "no_provider", "other_kinds", "dropped_by_hook", "folded", "folding", "failed", "spans")


@pytest.fixture(autouse=True)
def parts_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_ROWS_OF_A_UNIT", 2)


class Raises:
    """Of something: it raises the k-th time."""

    def __init__(self, made: Callable[..., Any], first: int) -> None:
        self.made, self.left = made, first

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise LookupError("a test's")
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
    sent.assert_no_orphans()
    counters = sink.counters()
    came = sum(counters[name] for name in ("rows", "roots", "summaries"))
    assert came == sum(counters[fate] for fate in FATES)
    assert counters["rows"] == ROWS
    assert counters["folding"] == 0
    return counters


@pytest.mark.parametrize(("owner", "name"), STEPS, ids=lambda step: getattr(step, "__name__", step))
def test_a_step_of_ours(owner: Any, name: str, volume: Volume, ref: SpanContextRef) -> None:
    first, reached = 0, True
    while reached:
        first += 1
        sent = Sent()
        with pytest.MonkeyPatch.context() as patch:
            raises = Raises(getattr(owner, name), first)
            patch.setattr(owner, name, raises)
            play(new_provider(sent), sent, ref, volume=volume)
        reached = raises.was_reached
        assert span_id(OUTER) in {span.context.span_id for span in sent.spans} or not sent.spans


def test_a_span_that_can_not_be_made_keeps_back_no_other(
    volume: Volume, ref: SpanContextRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mapping, "ReadableSpan", Raising("leaf", mapping.ReadableSpan))
    sent = Sent()
    counters = play(new_provider(sent), sent, ref, volume=volume)
    assert {span.name for span in sent.spans} >= {"middle", "late", "outer"}
    assert counters["failed"] >= 9
    assert caplog.text.count("could not be made") == 1


class Raising:
    """Of spans of one name."""

    def __init__(self, name: str, made: Callable[..., Any]) -> None:
        self.name, self.made = name, made

    def __call__(self, *, name: str, **fields: Any) -> Any:
        if name == self.name:
            raise LookupError(name)
        return self.made(name=name, **fields)


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
