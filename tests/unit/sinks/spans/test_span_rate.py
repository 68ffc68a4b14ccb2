"""How many spans there may be in a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_folded_spans import Units, ranges_told

from batches import BASE_NS
from otel_recfn.model.events import EventFlag
from otel_recfn.sinks.spans.budgets import BURST_SECONDS, NS_PER_SECOND, SpanRate, Volume

pytestmark = pytest.mark.one_python

MS = 1_000_000


@given(
    per_second=st.integers(1, 5000),
    uses=st.lists(st.tuples(st.integers(0, 3 * NS_PER_SECOND), st.integers(1, 3000), st.booleans()), min_size=1, max_size=60),
)
def test_in_any_time_no_more_than_the_rate_and_ten_seconds_of_it(per_second: int, uses: list[tuple[int, int, bool]]) -> None:
    rate, used, now_ns = SpanRate(per_second), 0, BASE_NS
    for after_ns, wanted, unusual in uses:
        now_ns += after_ns
        granted = min(wanted, rate.left(now_ns, unusual=unusual))
        rate.use(granted, unusual=unusual)
        used += granted
    assert used <= per_second * (BURST_SECONDS + (now_ns - BASE_NS) / NS_PER_SECOND) + 1


@pytest.mark.parametrize("unusual", [False, True])
def test_what_was_not_used_for_ten_seconds_may_be_used_at_once(unusual: bool) -> None:
    rate = SpanRate(100)
    rate.left(BASE_NS, unusual=unusual)
    for kind in (False, True):
        rate.use(1000, unusual=kind)
        assert rate.left(BASE_NS, unusual=kind) == 0
    assert rate.left(BASE_NS + NS_PER_SECOND, unusual=unusual) == 50
    assert rate.left(BASE_NS + 60 * NS_PER_SECOND, unusual=unusual) == rate.half == 500


@pytest.mark.parametrize("unusual", [False, True])
def test_what_one_half_has_no_room_for_the_other_has(unusual: bool) -> None:
    rate = SpanRate(100)
    rate.left(BASE_NS, unusual=unusual)
    rate.use(1000, unusual=unusual)
    assert rate.left(BASE_NS + NS_PER_SECOND, unusual=unusual) == 100


def test_a_busy_program_gets_few_spans_for_each_unit_and_all_its_ranges() -> None:
    units = Units(Volume(1000, 50, 5000, per_second=100))
    for number in range(300):
        units.unit(200, f"request {number % 2}", took_us=1000 + number * 10_000)  # a hundred a second
    spans = units.ours()
    assert 300 <= len(spans) <= 300 + 100 * (BURST_SECONDS + 3)
    assert ranges_told(spans) == 300 * 200


@given(
    units=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40), st.booleans()), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
)
def test_many_units_have_the_same_spans_however_they_are_cut(units: list[tuple[int, int, bool]], cuts: set[int]) -> None:
    """Units that end one after the other, of one trace, come in one batch or in many."""
    told = []
    for edges in (set(), cuts):
        program = Units(Volume(12, 6, 60, per_second=3))
        epoch = program.start("epoch")
        rows, end_ns = [], BASE_NS
        for number, (count, took_ms, failed) in enumerate(units):
            if number in edges:
                program.drained(rows)
                rows = []
            step = program.start("step", epoch)
            below = [row for one in range(count) for row in program.rows(step, (f"op {one % 7}", one % 50))]
            end_ns += took_ms * 100 * MS
            below[0] |= {"end_ns": end_ns - MS, **({"error": "ValueError: no", "flags": EventFlag.ERROR} if failed else {})}
            step.end(end_ns)
            rows += below
        program.drained(rows)
        told.append(Counter((span.name, span.start_time, span.end_time) for span in program.ours()))
        program.close()
    assert told[0] == told[1]
