"""How many spans units get of what the program may have in a time: the more unusual ones first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import BASE_NS
from otel_recfn.sinks.spans import budgets
from otel_recfn.sinks.spans.budgets import BURST_SECONDS, NS_PER_SECOND, Budgets, UnitEnd, Volume

pytestmark = pytest.mark.one_python

MS = 1_000_000
USUAL_MS = 20
RANGES = 182


class Service:
    """Requests of one name, each a trace of its own."""

    def __init__(self, per_second: float = 1000) -> None:
        self.budgets, self.requests, self.now_ns = Budgets(1000, Volume(1000, 50, 5000, per_second=per_second)), 0, BASE_NS

    def request(self, took_ms: int, *, after_ms: int = 10, failed: bool = False, ranges: int = RANGES) -> int:
        """How many spans it gets."""
        self.requests += 1
        self.now_ns += after_ms * MS
        end = UnitEnd(self.requests, self.requests, "GET", took_ms * MS, failed, self.now_ns, ranges)
        return min(ranges, self.budgets.grant(end).spans)

    def usual(self, requests: int = 2000) -> None:
        for number in range(requests):
            self.request(USUAL_MS + number % 3)


def test_much_slower_requests_come_in_full_where_others_are_slow_in_the_same_seconds() -> None:
    service, dice = Service(), random.Random(1)
    service.usual()
    slow = []
    for number in range(5000):
        many_are_slow = number % 1000 < 300
        if number % 250 == 249:
            slow.append(service.request(30 * USUAL_MS))
        elif many_are_slow and number % 8 == 0:
            service.request(dice.randrange(3, 6) * USUAL_MS)
        else:
            service.request(USUAL_MS)
    assert slow == [RANGES] * 20


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


def test_traces_that_used_nothing_dont_take_the_place_of_one_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "MAX_TRACES", 2)
    of_trace = Budgets(1000, Volume(1000, 50, 5000))
    first = of_trace.grant(UnitEnd(1, 1, "step", MS, False, BASE_NS, RANGES)).spans
    for number in range(2, 9):
        of_trace.grant(UnitEnd(number, 1, "other", MS, False, BASE_NS, ranges=1))
    assert of_trace.grant(UnitEnd(1, 2, "step", MS, False, BASE_NS, RANGES)).spans < first


def test_a_longer_request_never_gets_less_than_a_shorter_one_would() -> None:
    def granted(times: int, failed: bool = False) -> int:
        service = Service()
        service.usual()
        for _ in range(10):
            service.request(8 * USUAL_MS, after_ms=0, ranges=300)
        return service.request(times * USUAL_MS, ranges=1000, failed=failed)

    found = [granted(times) for times in range(1, 70)] + [granted(1, failed=True)]
    assert found == sorted(found)
    assert found[0] < found[10] < found[-1] == 1000


@given(
    units=st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 100), st.integers(1, 1200), st.booleans()), min_size=1, max_size=200
    ),
    per_second=st.integers(1, 500),
)
def test_spans_per_second_is_a_bound_of_all(units: list[tuple[int, int, int, bool]], per_second: int) -> None:
    service, counted, began_ns = Service(per_second), 0, BASE_NS
    for took_ms, after_ms, ranges, failed in units:
        counted += service.request(took_ms, after_ms=after_ms, ranges=ranges, failed=failed) - 1
    assert counted <= per_second * (BURST_SECONDS + (service.now_ns - began_ns) / NS_PER_SECOND) + 1
