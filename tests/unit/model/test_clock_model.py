"""Durations are the monotonic clock's whatever the wall clock does; trees keep their offset, and nest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from models.clock import ClockMapping, Reading, Ticks

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
JITTER_NS = 70


def reading(monotonic_ns: int, offset_ns: int = START, ticks: int | None = None, took_ns: int = JITTER_NS) -> Reading:
    return Reading(monotonic_ns if ticks is None else ticks, monotonic_ns, monotonic_ns + offset_ns, took_ns)


def test_a_jump_is_told_once_and_a_small_change_not() -> None:
    clock = ClockMapping(reading(0))
    assert clock.anchor(reading(SECOND, START - 3600 * SECOND)) == -3600 * SECOND
    assert clock.anchor(reading(2 * SECOND, START - 3600 * SECOND)) == 0
    assert clock.anchor(reading(3 * SECOND, START - 3600 * SECOND + SECOND // 2)) == 0
    assert clock.offset_ns == START - 3600 * SECOND + SECOND // 2


wall_offsets = st.one_of(st.just(START), st.integers(START - 2 * SECOND, START + 2 * SECOND), st.integers(0, 2 * START))
gaps = st.integers(1, 10 * SECOND)


@given(st.lists(st.tuples(gaps, wall_offsets), max_size=30), st.floats(0.2, 5))
def test_durations_are_the_monotonic_clocks_whatever_the_wall_clock_does(
    steps: list[tuple[int, int]], ns_per_tick: float
) -> None:
    clock, now, last = ClockMapping(reading(0), ns_per_tick), 0, 0
    for elapsed, offset in steps:
        for moment in (now + elapsed // 3, now + elapsed // 2):
            converted = clock.monotonic_ns(Ticks(round(moment / ns_per_tick)))
            assert abs(converted - moment) <= 3 * ns_per_tick + 10_000 * 1e-9 * moment
            assert converted >= last
            last = converted
        now += elapsed
        clock.anchor(reading(now, offset, ticks=round(now / ns_per_tick)))
        assert abs(clock.offset_ns - offset) <= 10_000
