"""How many spans units, all of them and roots of ours may have in a time: the more unusual ones
first.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_folded_spans import Units, ranges_told

from helpers.batches import BASE_NS
from otel_recfn.model.events import EventFlag
from otel_recfn.sinks.spans import budgets
from otel_recfn.sinks.spans.budgets import (
    BURST_SECONDS,
    DURATIONS,
    MAX_NAMES,
    NS_PER_SECOND,
    UNUSUAL,
    Budgets,
    SpanRate,
    UnitEnd,
    UsualDurations,
    Volume,
)
from otel_recfn.sinks.spans.root_limiter import FIRST_ROOTS, RootLimiter

pytestmark = pytest.mark.one_python
MS = 1_000_000
USUAL_MS = 20
RANGES = 182


class Service:
    """Requests of one name, each a trace of its own."""

    def __init__(self, per_second: float = 1000) -> None:
        self.budgets = Budgets(1000, Volume(1000, 50, 5000, per_second=per_second))
        self.requests = 0
        self.now_ns = BASE_NS

    def request(
        self, took_ms: int, *, after_ms: int = 10, failed: bool = False, ranges: int = RANGES
    ) -> int:
        """How many spans it gets."""
        self.requests += 1
        self.now_ns += after_ms * MS
        end = UnitEnd(
            (self.requests, self.requests), "GET", took_ms * MS, failed, self.now_ns, ranges
        )
        return min(ranges, self.budgets.grant(end).spans)

    def usual(self, requests: int = 2000) -> None:
        for number in range(requests):
            self.request(USUAL_MS + number % 3)


def test_flushes_in_a_request_dont_raise_its_budget() -> None:
    service = Service(per_second=1e6)
    service.usual(100)
    key = (1 << 40, 1)
    granted = 0
    for _ in range(30):
        part = UnitEnd(key, "GET", None, False, service.now_ns, ranges=10, is_cut=True)
        granted += min(10, service.budgets.grant(part).spans)
    assert 50 <= granted <= 50 + 30, "one for each part at least, as each unit has one"
    last = UnitEnd(key, "GET", USUAL_MS * MS, False, service.now_ns, ranges=10)
    assert service.budgets.grant(last).spans == 1
    failed = UnitEnd((1 << 41, 1), "GET", USUAL_MS * MS, True, service.now_ns, ranges=1000)
    assert service.budgets.grant(failed).spans > 50


@pytest.mark.parametrize("failed", [False, True])
def test_ordinary_requests_get_their_few_however_many_are_unusual(failed: bool) -> None:
    service = Service()
    service.usual()
    ordinary = []
    for number in range(3000):
        if number % 17 == 0:
            service.request(60 * USUAL_MS, failed=failed, ranges=1000)
        else:
            ordinary.append(service.request(USUAL_MS))
    assert min(ordinary[1000:]) > 1


def test_unused_traces_are_evicted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budgets, "MAX_TRACES", 2)
    granting = Budgets(1000, Volume(1000, 50, 5000))
    first = granting.grant(UnitEnd((1, 1), "step", MS, False, BASE_NS, RANGES)).spans
    for number in range(2, 9):
        granting.grant(UnitEnd((number, 1), "other", MS, False, BASE_NS, ranges=1))
    assert granting.grant(UnitEnd((1, 2), "step", MS, False, BASE_NS, RANGES)).spans < first


def test_a_longer_request_never_gets_less_than_a_shorter_one_would() -> None:
    def granted(times: int, failed: bool = False) -> int:
        service = Service()
        service.usual()
        for _ in range(10):
            service.request(8 * USUAL_MS, after_ms=0, ranges=300)
        return service.request(times * USUAL_MS, ranges=1000, failed=failed)

    found = [granted(times) for times in range(1, 70)] + [granted(1, failed=True)]
    assert found == sorted(found)
    assert found[0] < found[10] == found[-1]


@given(
    units=st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 100), st.integers(1, 1200), st.booleans()),
        min_size=1,
        max_size=200,
    ),
    per_second=st.integers(1, 500),
)
def test_spans_per_second_is_a_bound_of_all(
    units: list[tuple[int, int, int, bool]], per_second: int
) -> None:
    service = Service(per_second)
    counted = 0
    began_ns = BASE_NS
    for took_ms, after_ms, ranges, failed in units:
        counted += service.request(took_ms, after_ms=after_ms, ranges=ranges, failed=failed) - 1
    assert counted <= per_second * (BURST_SECONDS + (service.now_ns - began_ns) / NS_PER_SECOND) + 1


@pytest.mark.parametrize("unusual", [False, True])
def test_what_was_not_used_for_ten_seconds_may_be_used_at_once(unusual: bool) -> None:
    rate = SpanRate(100)
    rate.remaining(BASE_NS, unusual=unusual)
    for kind in (False, True):
        rate.use(1000, unusual=kind)
        assert rate.remaining(BASE_NS, unusual=kind) == 0
    assert rate.remaining(BASE_NS + NS_PER_SECOND, unusual=unusual) == 50
    assert rate.remaining(BASE_NS + 60 * NS_PER_SECOND, unusual=unusual) == 500


@pytest.mark.parametrize("unusual", [False, True])
def test_what_one_half_has_no_room_for_the_other_has(unusual: bool) -> None:
    rate = SpanRate(100)
    rate.remaining(BASE_NS, unusual=unusual)
    rate.use(1000, unusual=unusual)
    assert rate.remaining(BASE_NS + NS_PER_SECOND, unusual=unusual) == 100


def test_a_busy_program_gets_few_spans_for_each_unit_and_all_its_ranges() -> None:
    units = Units(Volume(1000, 50, 5000, per_second=100))
    for number in range(300):
        # A hundred a second.
        units.unit(200, f"request {number % 2}", took_us=1000 + number * 10_000)
    spans = units.ours()
    assert 300 <= len(spans) <= 300 + 100 * (BURST_SECONDS + 3)
    assert ranges_told(spans) == 300 * 200


@given(
    units=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 40), st.booleans()), min_size=1, max_size=30
    ),
    cuts=st.sets(st.integers(1, 29)),
)
def test_many_units_have_the_same_spans_however_they_are_cut(
    units: list[tuple[int, int, bool]], cuts: set[int]
) -> None:
    """Units that end one after the other, of one trace, come in one batch or in many."""
    sent = []
    for edges in (set(), cuts):
        program = Units(Volume(12, 6, 60, per_second=3))
        epoch = program.start("epoch")
        rows, end_ns = [], BASE_NS
        for number, (count, took_ms, failed) in enumerate(units):
            if number in edges:
                program.drained(rows)
                rows = []
            step = program.start("step", epoch)
            below = [
                row
                for one in range(count)
                for row in program.rows(step, (f"op {one % 7}", one % 50))
            ]
            end_ns += took_ms * 100 * MS
            below[0] |= {
                "end_ns": end_ns - MS,
                **({"error": "ValueError: no", "flags": EventFlag.ERROR} if failed else {}),
            }
            step.end(end_ns)
            rows += below
        program.drained(rows)
        sent.append(Counter((span.name, span.start_time, span.end_time) for span in program.ours()))
        program.close()
    assert sent[0] == sent[1]


def test_first_hundred_then_the_rate() -> None:
    limiter = RootLimiter(1.0)
    assert [limiter.admit(BASE_NS) for _ in range(FIRST_ROOTS + 1)] == [True] * FIRST_ROOTS + [
        False
    ]
    assert not limiter.admit(BASE_NS + NS_PER_SECOND // 2)
    assert limiter.admit(BASE_NS + NS_PER_SECOND)
    assert not limiter.admit(BASE_NS + NS_PER_SECOND)


def test_rest_gives_no_second_burst() -> None:
    limiter = RootLimiter(2.0)
    for _ in range(FIRST_ROOTS):
        limiter.admit(BASE_NS)
    later = BASE_NS + 1000 * NS_PER_SECOND
    assert [limiter.admit(later) for _ in range(3)] == [True, True, False]


def test_after_the_clock_was_set_back_it_fills_its_bucket_from_then_on() -> None:
    limiter = RootLimiter(1.0)
    for _ in range(FIRST_ROOTS):
        limiter.admit(BASE_NS)
    limiter.admit(BASE_NS - 3600 * NS_PER_SECOND)
    assert limiter.admit(BASE_NS - 3590 * NS_PER_SECOND)


def test_no_limit() -> None:
    limiter = RootLimiter(None)
    assert all(limiter.admit(0) for _ in range(1000))


def test_where_all_take_longer_than_before_few_are_unusual() -> None:
    usual = UsualDurations()
    dice = random.Random(1)
    for _ in range(DURATIONS):
        usual.compare("request", 1000)
    found = [usual.compare("request", dice.randrange(5000, 9000))[1] for _ in range(1000)]
    assert sum(found[300:]) <= 3 * 700 / UNUSUAL


def test_the_slow_ones_are_among_many_that_vary() -> None:
    usual = UsualDurations()
    dice = random.Random(2)
    found = [
        usual.compare("request", 50_000 if number % 500 == 499 else dice.randrange(500, 3000))
        for number in range(10_000)
    ]
    assert all(unusual for number, (_, unusual) in enumerate(found) if number % 500 == 499)
    assert sum(unusual for _, unusual in found) < 10_000 / 100


def test_names_know_nothing_of_each_other_and_are_forgotten() -> None:
    usual = UsualDurations()
    for number in range(MAX_NAMES + 10):
        assert usual.compare(str(number), 5) == (0, False)
    assert usual.compare(str(MAX_NAMES), 50) == (1, True)
    assert usual.compare("0", 50) == (0, False)
