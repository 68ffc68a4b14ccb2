"""Which units take unusually long."""

from __future__ import annotations

import random

import pytest

from otel_recfn.sinks.spans.budgets import DURATIONS, MAX_NAMES, UNUSUAL, UsualDurations

pytestmark = pytest.mark.one_python


def test_where_all_take_longer_than_before_few_are_unusual() -> None:
    usual, dice = UsualDurations(), random.Random(1)
    for _ in range(DURATIONS):
        usual.compare("request", 1000)
    found = [usual.compare("request", dice.randrange(5000, 9000))[1] for _ in range(1000)]
    assert sum(times > 0 for times in found[300:]) <= 3 * 700 / UNUSUAL


def test_the_slow_ones_are_among_many_that_vary() -> None:
    usual, dice = UsualDurations(), random.Random(2)
    found = [usual.compare("request", 50_000 if number % 500 == 499 else dice.randrange(500, 3000)) for number in range(10_000)]
    assert all(times > 15 for number, (_, times) in enumerate(found) if number % 500 == 499)
    assert sum(times > 0 for _, times in found) < 10_000 / 100


def test_names_know_nothing_of_each_other_and_are_forgotten() -> None:
    usual = UsualDurations()
    for number in range(MAX_NAMES + 10):
        assert usual.compare(str(number), 5) == (0, 0)
    assert usual.compare(str(MAX_NAMES), 50) == (1, 10)
    assert usual.compare("0", 50) == (0, 0)
