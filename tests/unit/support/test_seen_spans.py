"""Which of the program's spans can be found by their ids, and which of them are kept alive for
that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from otel_recfn.support.seen_spans import MAX_SEEN_SPANS, SeenSpans

pytestmark = pytest.mark.one_python

TRACE = 5


class Span(SimpleNamespace):
    """Which one may have a weak reference to."""


def span(parent: int = 0, end_time: int | None = None) -> Any:
    """As the SDK has them."""
    return Span(parent=SimpleNamespace(trace_id=TRACE, span_id=parent), end_time=end_time)


@pytest.fixture
def seen() -> Iterator[SeenSpans]:
    made = SeenSpans()
    kept = made.retain()
    yield made
    del kept


def find_spans(seen: SeenSpans, *numbers: int) -> list[Any]:
    return [seen.find(TRACE, number) for number in numbers]


@pytest.mark.parametrize("over", [False, True])
def test_the_newest_are_kept(seen: SeenSpans, over: bool) -> None:
    for number in range(1, 2 * MAX_SEEN_SPANS):
        seen.note(TRACE, number, span(end_time=7 if over else None))
    kept = find_spans(seen, *range(2 * MAX_SEEN_SPANS))
    assert MAX_SEEN_SPANS // 2 <= len(kept) - kept.count(None) <= MAX_SEEN_SPANS
    assert None not in kept[-MAX_SEEN_SPANS // 2 :]


def test_one_that_is_open_is_kept_however_many_are_over(seen: SeenSpans) -> None:
    open_ones = [span() for _ in range(MAX_SEEN_SPANS // 4)]
    for number, each in enumerate(open_ones):
        seen.note(TRACE, number, each)
    for number in range(MAX_SEEN_SPANS, 4 * MAX_SEEN_SPANS):
        seen.note(TRACE, number, span(end_time=7))
    assert find_spans(seen, *range(len(open_ones))) == open_ones


def test_the_spans_around_one_that_something_runs_in_are_known_and_no_others_are_kept(
    seen: SeenSpans,
) -> None:
    spans = {number: span(parent=number - 1) for number in range(1, 5)}
    for number, each in spans.items():
        seen.became_current(TRACE, number, each)
    last = spans.pop(4)
    others = [weakref.ref(spans.pop(3)), weakref.ref(spans.pop(2))]
    assert [other() for other in others] == [None, None]
    seen.note(TRACE, 4, last)  # what is around it is gone
    assert find_spans(seen, 0, 1, 2, 3, 4) == [None, None, None, None, last]
    around = span(parent=1)
    seen.became_current(TRACE, 7, around)
    seen.became_current(TRACE, 8, object())  # of a class without weak references
    seen.note(TRACE, 9, span(parent=7))
    assert find_spans(seen, 7, 1, 8) == [around, spans[1], None]


def test_where_nobody_tells_of_them_none_is_kept_alive() -> None:
    seen = SeenSpans()
    noted = span()
    gone = weakref.ref(noted)
    seen.note(TRACE, 1, noted)
    assert find_spans(seen, 1) == [None]
    del noted
    assert gone() is None


def test_those_that_are_open_when_somebody_comes_who_tells_of_them_are_known() -> None:
    seen = SeenSpans()
    around = span()
    inner = span(parent=1)
    over = span()
    seen.became_current(TRACE, 1, around)
    for number in range(MAX_SEEN_SPANS, 4 * MAX_SEEN_SPANS):
        seen.became_current(TRACE, number, span())  # which is gone at once
    seen.note(TRACE, 2, inner)
    seen.note(TRACE, 3, over)
    over.end_time = 7
    kept = seen.retain()
    also_kept = seen.retain()
    assert find_spans(seen, 1, 2, 3) == [around, inner, None]
    del kept
    assert find_spans(seen, 1, 2) == [around, inner]
    del also_kept
    seen.note(TRACE, 4, last := span())
    assert find_spans(seen, 1, 2, 4) == [None, None, None]
    _kept_again = seen.retain()
    assert find_spans(seen, 1, 4) == [around, last]
