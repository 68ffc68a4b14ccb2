"""How many traces of our own begin."""

from __future__ import annotations

import pytest

from batches import BASE_NS
from otel_recfn.sinks.spans.step_traces import FIRST_ROOTS, NS_PER_SECOND, RootLimiter

pytestmark = pytest.mark.one_python


def test_first_hundred_then_the_rate() -> None:
    limiter = RootLimiter(1.0)
    assert [limiter.admit(BASE_NS) for _ in range(FIRST_ROOTS + 1)] == [True] * FIRST_ROOTS + [False]
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
