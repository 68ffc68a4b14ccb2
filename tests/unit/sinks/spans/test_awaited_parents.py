"""Of spans that are held back, an exporter gets those that are around what it has: no more, and no fewer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_recfn.sinks.spans import awaited_parents
from otel_recfn.sinks.spans.awaited_parents import AwaitedParents

pytestmark = pytest.mark.one_python


def span(number: int, parent: int, trace: int = 1) -> ReadableSpan:
    def context(span_id: int) -> SpanContext:
        return SpanContext(trace, span_id, is_remote=False)

    return ReadableSpan(str(number), context(number), context(parent) if parent else None)


def numbers(spans: list[ReadableSpan]) -> list[int]:
    return sorted(int(one.name) for one in spans)


@st.composite
def exports(draw: st.DrawFn) -> tuple[list[list[ReadableSpan]], int]:
    """Spans below each other, in batches in any order, and how many of these are exported whole."""
    parents = [draw(st.integers(0, number)) for number in range(draw(st.integers(1, 12)))]
    order = draw(st.permutations([span(number, parent) for number, parent in enumerate(parents, 1)]))
    size = draw(st.integers(1, 5))
    batches = [list(order[first : first + size]) for first in range(0, len(order), size)]
    return batches, draw(st.integers(0, len(batches)))


@given(exports(), st.sets(st.integers(1, 12)))
def test_whatever_was_exported_its_parents_are(given_: tuple[list[list[ReadableSpan]], int], others: set[int]) -> None:
    """``others``: these spans are not left out, in no case."""
    batches, whole = given_
    parents, got = AwaitedParents(), list[ReadableSpan]()
    for number, batch in enumerate(batches):
        wanted = batch if number < whole else parents.needed(batch, lambda one: int(one.name) not in others)
        parents.note(wanted)
        got += wanted
    there = set(numbers(got))
    assert len(there) == len(got)
    all_spans = {int(one.name): one for batch in batches for one in batch}
    needed = {int(one.name) for batch in batches[:whole] for one in batch} | {
        number for number in all_spans if number in others
    }
    around = set(needed)
    for number in needed:
        at = all_spans[number]
        while at.parent is not None:
            around.add(at.parent.span_id)
            at = all_spans[at.parent.span_id]
    assert there == around


def test_of_an_export_that_failed_nothing_is_awaited() -> None:
    parents = AwaitedParents()
    parents.forget(parents.note([span(2, 1)]))
    assert parents.needed([span(1, 0)], lambda _span: True) == []


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_parents, "MOST", 2)
    parents = AwaitedParents()
    for number in (1, 2, 3):
        parents.note([span(10 + number, number)])
    assert numbers(parents.needed([span(number, 0) for number in (1, 2, 3)], lambda _span: True)) == [2, 3]


def test_a_span_of_another_trace_is_another_one() -> None:
    """A range that is open for long has one under the same id."""
    parents = AwaitedParents()
    parents.note([span(2, 1)])
    parents.note([span(1, 0, trace=2)])
    assert numbers(parents.needed([span(1, 0)], lambda _span: True)) == [1]
