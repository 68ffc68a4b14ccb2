"""What is known of the program's spans by their begins and ends: which of them nest in their
thread.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanContext

from otel_recfn.support.span_log import MAX_OPEN, SpanLog

pytestmark = pytest.mark.one_python

TRACE = 5


def context(span_id: int, trace_id: int = TRACE) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False)


class Program:
    """Spans of one thread, called by their numbers."""

    def __init__(self) -> None:
        self.log = SpanLog()
        self.log.set_wanted(True)
        self._spans: dict[int, Any] = {}

    def begin(self, number: int, parent: int = 0, trace_id: int = TRACE) -> None:
        of = context(number, trace_id)
        around = context(parent, trace_id) if parent else None
        self._spans[number] = SimpleNamespace(
            context=of, parent=around, name=str(number), start_time=time.time_ns()
        )
        self.log.began(self._spans[number])

    def end(self, number: int) -> None:
        span = self._spans.pop(number)
        span.end_time = time.time_ns()
        self.log.ended(span)

    def nesting(self) -> dict[str, bool]:
        """Of the spans that have ended."""
        return {span.name: span.nests for span in self.log.collect() if span.end_ns}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """Whose begins and ends are never heard of too late, however busy the machine is."""
    monkeypatch.setattr("otel_recfn.support.span_log.LONGEST_DELAY_NS", 1 << 64)
    return Program()


def test_spans_in_each_other_nest_also_with_a_range_in_between(program: Program) -> None:
    program.begin(1)
    program.begin(2, parent=1)
    program.begin(3, parent=1000)  # a range's span, in the second one
    program.end(3)
    program.end(2)
    program.begin(4, parent=1)
    program.end(4)
    program.end(1)
    assert program.nesting() == {"3": True, "2": True, "4": True, "1": True}


def test_spans_of_tasks_that_interleave_do_not_nest(program: Program) -> None:
    program.begin(1, trace_id=1)
    program.begin(2, trace_id=2)
    program.begin(3, parent=2, trace_id=2)
    program.end(1)
    program.end(3)
    program.end(2)
    assert program.nesting() == {"1": False, "3": False, "2": False}


def test_one_that_goes_on_after_the_one_around_it_does_not_nest(program: Program) -> None:
    program.begin(1)
    program.begin(2, parent=1)
    program.end(1)
    program.begin(3)
    program.end(3)
    program.end(2)
    assert program.nesting() == {"1": False, "3": True, "2": False}


def test_one_that_ends_in_another_thread_does_not_nest(program: Program) -> None:
    program.begin(1)
    thread = threading.Thread(target=program.end, args=(1,))
    thread.start()
    thread.join()
    assert program.nesting() == {"1": False}


def test_it_reports_begins_then_ends_and_forgets_the_oldest(
    program: Program,
) -> None:
    program.begin(1)
    [begun] = program.log.collect()
    assert (begun.span_id, begun.end_ns, begun.nests) == (1, 0, False)
    assert begun.thread.native_id == threading.get_native_id()
    assert begun.thread.name == threading.current_thread().name
    assert program.log.collect() == ()
    for number in range(2, MAX_OPEN + 2):
        program.begin(number)
    assert len(program.log.collect()) == MAX_OPEN
    program.end(1)
    program.end(2)
    assert [span.span_id for span in program.log.collect()] == [2]


def test_a_time_or_name_that_is_none_does_no_harm(program: Program) -> None:
    for number, given in enumerate((None, "now", -1, float("nan"), 1 << 70), 1):
        span = SimpleNamespace(
            context=context(number), parent=None, name=given, start_time=given, end_time=given
        )
        program.log.began(span)
        program.log.ended(span)
    found = [span for span in program.log.collect() if span.end_ns]
    assert [span.nests for span in found] == [False] * 5
    assert (found[0].name, found[1].name) == (f"span {1:016x}", "now")
    assert all(0 < span.start_ns <= span.end_ns for span in found)


def test_spans_that_began_while_the_log_was_off_are_unknown(program: Program) -> None:
    program.begin(1)
    program.log.set_wanted(False)
    program.log.set_wanted(True)
    program.end(1)
    assert list(program.log.collect()) == []
