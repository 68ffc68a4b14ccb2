"""Durations are the monotonic clock's whatever the wall clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from models.clock import ClockMapping, Reading, Ticks

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
JITTER_NS = 70


def reading(monotonic_ns: int, offset_ns: int = START, ticks: int | None = None, took_ns: int = JITTER_NS) -> Reading:
    return Reading(monotonic_ns if ticks is None else ticks, monotonic_ns, monotonic_ns + offset_ns, took_ns)


def test_two_readings_close_together_do_not_turn_jitter_into_a_rate() -> None:
    clock = ClockMapping(reading(0))
    clock.anchor(reading(10_000 + 1_000, ticks=10_000))
    assert abs(clock.monotonic_ns(Ticks(SECOND)) - SECOND) < 10_000


def test_a_wrong_rate_is_measured_and_the_error_goes_away() -> None:
    clock = ClockMapping(reading(0), ns_per_tick=1.0005)
    for tenth in range(1, 100):
        clock.anchor(reading(tenth * SECOND // 10))
    assert abs(clock.monotonic_ns(Ticks(10 * SECOND)) - 10 * SECOND) < 1_000


def test_a_rate_that_is_wrong_by_half_is_measured_too() -> None:
    """A busy machine can stop us in the middle of the first measurement."""
    clock = ClockMapping(reading(0), ns_per_tick=1.5)
    for tenth in range(1, 100):
        clock.anchor(reading(tenth * SECOND // 10))
    assert abs(clock.monotonic_ns(Ticks(11 * SECOND)) - clock.monotonic_ns(Ticks(10 * SECOND)) - SECOND) <= 500_000


def test_a_reading_that_took_long_is_no_measurement() -> None:
    clock = ClockMapping(reading(0))
    clock.anchor(reading(2 * SECOND, ticks=SECOND, took_ns=SECOND))
    assert clock.offset_ns == START
    assert abs(clock.monotonic_ns(Ticks(2 * SECOND)) - clock.monotonic_ns(Ticks(SECOND)) - SECOND) <= 500_000


def test_ticks_that_jump_are_taken_as_they_are_from_then_on() -> None:
    """A machine that slept, whose cycle counter went on or began anew."""
    for ticks_after in (3600 * SECOND, 5):
        clock = ClockMapping(reading(0))
        clock.anchor(reading(SECOND))
        clock.anchor(reading(2 * SECOND, ticks=ticks_after))
        assert clock.monotonic_ns(Ticks(ticks_after + 1000)) == 2 * SECOND + 1000


def test_a_jump_is_told_once_and_a_small_change_not() -> None:
    clock = ClockMapping(reading(0))
    assert clock.anchor(reading(SECOND, START - 3600 * SECOND)) == -3600 * SECOND
    assert clock.anchor(reading(2 * SECOND, START - 3600 * SECOND)) == 0
    assert clock.anchor(reading(3 * SECOND, START - 3600 * SECOND + SECOND // 2)) == 0
    assert clock.offset_ns == START - 3600 * SECOND + SECOND // 2


def test_a_recording_that_begins_takes_the_wall_clock_as_it_is_and_tells_nothing() -> None:
    clock = ClockMapping(reading(0))
    clock.begin(reading(SECOND, START + 60 * SECOND))
    assert clock.offset_ns == START + 60 * SECOND
    assert clock.anchor(reading(2 * SECOND, START + 60 * SECOND)) == 0


def test_a_recording_that_begins_is_right_at_once_however_wrong_the_ticks_have_become() -> None:
    """Between two recordings nobody has followed them."""
    clock = ClockMapping(reading(0), ns_per_tick=1.0005)
    clock.anchor(reading(SECOND // 10))
    clock.begin(reading(100 * SECOND))
    assert clock.monotonic_ns(Ticks(100 * SECOND + 1000)) == 100 * SECOND + 1000


def test_jitter_of_the_readings_is_not_followed() -> None:
    clock = ClockMapping(reading(0))
    clock.anchor(reading(SECOND, START + 9_000))
    assert clock.offset_ns == START


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
