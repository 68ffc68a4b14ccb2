"""``native/core/clock.hpp``: durations are the monotonic clock's, and nest; the wall clock is
followed.

Compiled here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.timeouts import PATIENCE_S

NATIVE = Path(__file__).parents[3] / "src/otel_recfn/native"
PROGRAM = """
#include <iostream>
#include "core/clock.hpp"

int main() {
  recfn::ClockMapping clock(1);
  for (std::string what; std::cin >> what;) {
    recfn::Reading now{};
    double rate = 1;
    std::cin >> now.ticks;
    if (what != "convert") std::cin >> now.monotonic_ns >> now.unix_ns >> now.took_ns;
    if (what == "start") std::cin >> rate, clock = recfn::ClockMapping(rate), clock.begin(now);
    if (what == "begin") clock.begin(now);
    if (what == "anchor") std::cout << clock.anchor(now) << " " << clock.offset_ns() << std::endl;
    if (what == "convert") std::cout << clock.monotonic_ns(now.ticks) << std::endl;
  }
}
"""


SECOND = 1_000_000_000
START = 1_700_000_000_000_000_000
JITTER_NS = 70


Reading = tuple[int, int, int, int]
"""Ticks, monotonic and Unix nanoseconds, and how long reading them took."""


def reading(monotonic_ns: int, offset_ns: int = START, ticks: int | None = None) -> Reading:
    return (
        monotonic_ns if ticks is None else ticks,
        monotonic_ns,
        monotonic_ns + offset_ns,
        JITTER_NS,
    )


class NativeClock:
    """Asks the compiled program."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def ask(self, *words: object) -> list[int]:
        self.tell(*words)
        assert self._process.stdout is not None
        return [int(word) for word in self._process.stdout.readline().split()]

    def anchor(self, now: Reading) -> list[int]:
        """By how much the wall clock jumped, and how far it is from the monotonic clock."""
        return self.ask("anchor", *now)

    def convert(self, ticks: int) -> int:
        """Monotonic nanoseconds."""
        return self.ask("convert", ticks)[0]

    def stop(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeClock]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    directory = tmp_path_factory.mktemp("clock")
    (directory / "clock.cpp").write_text(PROGRAM)
    command = [compiler, "-std=c++17", f"-I{NATIVE}", "clock.cpp", "-o", "clock"]
    subprocess.run(command, cwd=directory, check=True, timeout=PATIENCE_S)
    clock = NativeClock(directory / "clock")
    yield clock
    clock.stop()


def test_a_jump_is_told_once_and_a_small_change_not(native: NativeClock) -> None:
    native.tell("start", *reading(0), 1.0)
    hour_ago = START - 3600 * SECOND
    assert native.anchor(reading(SECOND, hour_ago)) == [-3600 * SECOND, hour_ago]
    assert native.anchor(reading(2 * SECOND, hour_ago)) == [0, hour_ago]
    assert native.anchor(reading(3 * SECOND, hour_ago + SECOND // 2)) == [0, hour_ago + SECOND // 2]


def test_a_recording_begins_with_what_the_clocks_say(native: NativeClock) -> None:
    native.tell("start", *reading(0), 1.0)
    native.tell("begin", *reading(SECOND + 500_000, START + 7, ticks=SECOND))
    assert native.convert(SECOND) == SECOND + 500_000
    assert native.anchor(reading(2 * SECOND + 500_000, START + 7, ticks=2 * SECOND)) == [
        0,
        START + 7,
    ]


def test_where_ticks_stood_still_while_the_machine_slept_time_goes_on_from_there(
    native: NativeClock,
) -> None:
    native.tell("start", *reading(0), 1.0)
    native.anchor(reading(100 * SECOND, ticks=SECOND))
    assert native.convert(SECOND) == 100 * SECOND


@pytest.mark.parametrize("error", [-300e-6, 300e-6])
def test_a_rate_that_is_not_quite_as_was_said_is_measured_and_its_error_made_good(
    native: NativeClock, error: float
) -> None:
    native.tell("start", *reading(0), 1.0)
    last = 0
    for now in range(SECOND, 20 * SECOND, SECOND):
        ticks = round(now * (1 + error))
        assert last <= native.convert(ticks)
        native.anchor(reading(now, ticks=ticks))
        last = native.convert(ticks)
    assert abs(last - now) < 1000
    ticks += SECOND
    # Too inexact to measure a rate by.
    native.anchor((ticks, now + SECOND + 500_000, START, 1_000_000))
    native.tell("begin", *reading(now + SECOND, ticks=ticks))
    assert abs(native.convert(ticks + SECOND) - (now + SECOND) - SECOND / (1 + error)) < 1000


wall_offsets = st.one_of(
    st.just(START), st.integers(START - 2 * SECOND, START + 2 * SECOND), st.integers(0, 2 * START)
)
gaps = st.integers(1, 10 * SECOND)


@given(st.lists(st.tuples(gaps, wall_offsets), max_size=30), st.floats(0.2, 5))
def test_durations_are_the_monotonic_clocks_whatever_the_wall_clock_does(
    native: NativeClock, steps: list[tuple[int, int]], ns_per_tick: float
) -> None:
    native.tell("start", *reading(0), ns_per_tick)
    now = 0
    conversions = [(0, 0)]
    for anchors, (elapsed, offset) in enumerate(steps, start=1):
        rounded_ns = 0.5 * anchors  # each anchor, and the answer, are whole numbers
        for moment in (now + elapsed // 3, now + elapsed // 2):
            ticks = round(moment / ns_per_tick)
            converted = native.convert(ticks)
            assert abs(converted - moment) <= rounded_ns + 3 * ns_per_tick + 10_000 * 1e-9 * moment
            assert converted >= conversions[-1][1]
            conversions.append((ticks, converted))
        now += elapsed
        [_, found] = native.anchor(reading(now, offset, ticks=round(now / ns_per_tick)))
        assert abs(found - offset) <= 10_000
        # What was recorded before the last reading is converted as before that.
        late = conversions[-2:]
        assert [native.convert(ticks) for ticks, _ in late] == [converted for _, converted in late]
