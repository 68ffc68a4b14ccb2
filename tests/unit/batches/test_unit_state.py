"""A unit's state in the stage: when it is due, what is known of it, and its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanContext

from helpers.batches import BASE_NS, context, make_batch
from otel_recfn.batches.stage import Stage
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag

pytestmark = pytest.mark.one_python

REQUEST = context(1, 2)
ABOVE = SpanContext(1, 2, False)
DRAINED_NS = BASE_NS + 1_000_000
NOW_NS = BASE_NS + 2_000_000


def ranges(count: int, span_id: int = 2, first: int = 1, **columns: Any) -> Batch:
    """Outermost ranges below a span."""
    rows = [
        {"event_id": first + number, "context": context(1, span_id), **columns}
        for number in range(count)
    ]
    return make_batch(rows)


def numbers(units: Any) -> list[int]:
    return [unit.unit for unit in units]


def test_a_unit_is_due_when_its_span_ended_before_a_drain() -> None:
    stage = Stage(9)
    stage.add(ranges(3))
    (unit,) = numbers(stage.units())
    assert stage.find(REQUEST) == unit
    assert not stage.due(DRAINED_NS, NOW_NS)
    stage.end_span(unit, ended_by_ns=DRAINED_NS, start_ns=BASE_NS, end_ns=DRAINED_NS, failed=True)
    assert not stage.due(DRAINED_NS, NOW_NS)
    stage.add(replace(ranges(1, first=9), drained_ns=DRAINED_NS + 1))
    (due,) = stage.due(0, NOW_NS)
    assert (due.unit, due.rows, due.failed, due.has_ended) == (unit, 4, True, True)
    assert (due.start_ns, due.end_ns, due.last_ns) == (BASE_NS, DRAINED_NS, DRAINED_NS)
    stage.decide([(unit, 5)], [ABOVE], is_partial=False)
    assert stage.find(REQUEST) is None
    assert not stage.units()


def test_a_unit_is_due_when_the_clock_was_set_back_after_its_end() -> None:
    stage = Stage(9)
    stage.add(ranges(1))
    (unit,) = numbers(stage.units())
    stage.end_span(unit, ended_by_ns=NOW_NS, start_ns=None, end_ns=None, failed=False)
    assert not stage.due(DRAINED_NS, NOW_NS)
    assert numbers(stage.due(DRAINED_NS, DRAINED_NS - 1)) == [unit]


def test_a_unit_waits_for_outermost_ranges_that_are_open() -> None:
    stage = Stage(9)
    opened = {"event_id": 7, "context": REQUEST}
    stage.add(
        make_batch([{"event_id": 1, "context": REQUEST, "parent": 7, "root": 7}], opened=[opened]),
        {},
    )
    (unit,) = numbers(stage.units())
    stage.end_span(unit, ended_by_ns=BASE_NS, start_ns=BASE_NS, end_ns=BASE_NS, failed=False)
    assert not stage.due(DRAINED_NS, NOW_NS)
    stage.add(ranges(1, first=7))
    assert numbers(stage.due(DRAINED_NS, NOW_NS)) == [unit]


def test_a_finished_unit_is_due_whatever_is_open() -> None:
    stage = Stage(9)
    stage.add(make_batch([], opened=[{"event_id": 7, "context": REQUEST}]))
    (unit,) = numbers(stage.units())
    stage.finish(unit, takes_sums=True)
    assert not stage.unended()
    assert numbers(stage.due(0, 0)) == [unit]


def test_times_that_the_program_gave_otherwise_are_those_of_the_ranges() -> None:
    stage = Stage(9)
    stage.add(ranges(2, start_ns=BASE_NS + 5, end_ns=BASE_NS + 9))
    (unit,) = numbers(stage.units())
    stage.end_span(unit, ended_by_ns=NOW_NS, start_ns=None, end_ns=None, failed=False)
    (summary,) = stage.units()
    assert (summary.start_ns, summary.end_ns) == (BASE_NS + 5, BASE_NS + 9)


def test_a_unit_is_quiet_when_nothing_came_for_it_or_much() -> None:
    stage = Stage(9, many_rows=3)
    stage.add(ranges(2))
    assert [unit.is_quiet for unit in stage.unended()] == [False]
    stage.add(ranges(2, span_id=3, first=10), continues=True)
    assert [unit.is_quiet for unit in stage.unended()] == [False, False]
    stage.add(ranges(1, span_id=3, first=20))
    assert [unit.is_quiet for unit in stage.unended()] == [True, True]
    stage.add(ranges(1, first=30))
    assert [unit.is_quiet for unit in stage.unended()] == [True, True]
    stage.decide([(stage.find(REQUEST) or 0, 9)], [ABOVE], is_partial=True)
    assert [unit.is_quiet for unit in stage.unended()] == [False, True]
    stage.note_idle()
    assert [unit.is_quiet for unit in stage.unended()] == [True, True]


def test_units_without_rows_for_longest_are_due_when_they_are_too_many() -> None:
    stage = Stage(9, max_units=2)
    for span_id in (2, 3, 4):
        stage.add(ranges(1, span_id=span_id, first=10 * span_id))
    stage.add(ranges(1, first=90))
    assert numbers(stage.due(0, NOW_NS)) == [stage.find(context(1, 3))]


def test_units_without_rows_for_longest_are_due_when_too_many_rows_wait() -> None:
    stage = Stage(9, max_rows=10)
    for span_id in (2, 3, 4):
        stage.add(ranges(4, span_id=span_id, first=10 * span_id))
    assert stage.waiting_rows() == 12
    assert numbers(stage.due(0, NOW_NS)) == [stage.find(REQUEST)]


def test_sums_are_those_since_the_last_part() -> None:
    stage = Stage(9)
    stage.add(
        ranges(3, start_ns=BASE_NS, end_ns=BASE_NS + 10, cpu_time_ns=4, flags=int(EventFlag.ERROR)),
        {},
    )
    (unit,) = stage.units(min_rows=3)
    assert (unit.rows, unit.top_ns, unit.top_cpu_ns, unit.failed) == (3, 30, 12, True)
    stage.decide([(unit.unit, 5)], [ABOVE], is_partial=True)
    assert not stage.units(min_rows=1)
    added = stage.add(ranges(1, first=9, start_ns=BASE_NS + 20, end_ns=BASE_NS + 21))
    assert not added.new_units
    (unit,) = stage.units()
    assert (unit.rows, unit.top_ns, unit.start_ns, unit.end_ns, unit.failed) == (
        1,
        0,
        BASE_NS,
        BASE_NS + 21,
        True,
    )


def test_ranges_below_an_open_outermost_one_are_sent_below_that() -> None:
    stage = Stage(9)
    opened = {"event_id": 7, "context": REQUEST}
    inner = {"event_id": 1, "context": REQUEST, "start_ns": BASE_NS, "end_ns": BASE_NS + 10}
    batch = make_batch([inner], opened=[opened])
    seven = np.array([7], np.uint64)
    stage.add(replace(batch, parent=seven, root=seven))
    (unit,) = numbers(stage.units())
    assert stage.decide([(unit, 5)], [ABOVE], is_partial=True).plan.parent.tolist() == [7]
    short = {"event_id": 7, "context": REQUEST, "start_ns": BASE_NS, "end_ns": BASE_NS}
    stage.add(make_batch([short, {**inner, "event_id": 8, "end_ns": BASE_NS + 1_000_000}]))
    kept = stage.decide([(unit, 5)], [ABOVE], is_partial=False).plan.batch.event_id.tolist()
    assert sorted(kept) == [7, 8], "it is a span as others were sent below it, although it is short"


def test_a_unit_that_was_decided_is_refused() -> None:
    stage = Stage(9)
    stage.add(ranges(1))
    (unit,) = numbers(stage.units())
    stage.decide([(unit, 5)], [ABOVE], is_partial=False)
    with pytest.raises(KeyError, match="isn't open"):
        stage.finish(unit)
    with pytest.raises(KeyError, match="isn't open"):
        stage.end_span(unit, ended_by_ns=1, start_ns=1, end_ns=1, failed=False)
