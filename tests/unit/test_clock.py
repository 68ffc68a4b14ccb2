"""The conversion of ticks never decreases, follows the wall clock, and doesn't mistake jitter for a rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.model.clock import ClockMapping, Ticks, UnixNanoseconds

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def mapping(ns_per_tick: float = 1.0) -> ClockMapping:
    return ClockMapping(Ticks(0), UnixNanoseconds(START), ns_per_tick)


def anchor(clock: ClockMapping, ticks: int, unix_ns: int) -> None:
    clock.anchor(Ticks(ticks), UnixNanoseconds(unix_ns))


def test_two_anchors_close_together_do_not_turn_jitter_into_a_rate() -> None:
    clock = mapping()
    anchor(clock, 10_000, START + 10_000 + 1_000)
    assert abs(clock.to_unix_ns(Ticks(SECOND)) - (START + SECOND)) < 10_000


def test_a_wrong_rate_is_measured_and_the_error_goes_away() -> None:
    clock = mapping(ns_per_tick=1.0005)
    for tenth in range(1, 100):
        anchor(clock, tenth * SECOND // 10, START + tenth * SECOND // 10)
    assert abs(clock.to_unix_ns(Ticks(10 * SECOND)) - (START + 10 * SECOND)) < 1_000


def test_a_step_back_is_slewed_away_without_running_backward() -> None:
    clock, last = mapping(), START
    for tenth in range(1, 300):
        now = tenth * SECOND // 10
        anchor(clock, now, START + now - SECOND)
        converted = clock.to_unix_ns(Ticks(now + SECOND // 20))
        assert converted > last
        last = converted
    assert abs(last - (START + 29_950_000_000 - SECOND)) < 1_000_000


def test_a_step_forward_of_over_a_second_is_taken_at_once() -> None:
    clock = mapping()
    anchor(clock, SECOND, START + 3600 * SECOND)
    assert clock.to_unix_ns(Ticks(SECOND)) == START + 3600 * SECOND
    assert clock.to_unix_ns(Ticks(SECOND - 1)) == START + SECOND - 1


@given(st.lists(st.tuples(st.integers(1, 10 * SECOND), st.integers(-5 * SECOND, 5 * SECOND)), max_size=30))
def test_it_never_decreases(steps: list[tuple[int, int]]) -> None:
    clock, now, last = mapping(), 0, START
    for elapsed, error in steps:
        for ticks in (now + elapsed // 3, now + elapsed // 2):
            converted = clock.to_unix_ns(Ticks(ticks))
            assert converted >= last
            last = converted
        now += elapsed
        anchor(clock, now, START + now + error)
