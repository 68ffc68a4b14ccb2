"""``native/core/clock.hpp`` converts as the model (``models/clock.py``) does; durations are the monotonic clock's, and nest."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.clock import ClockMapping, Reading, Ticks
from patience import PATIENCE_S

NATIVE = Path(__file__).parents[3] / "src/otel_recfn/native"
PROGRAM = """
#include <iostream>
#include "core/clock.hpp"

int main() {
  recfn::ClockMapping clock;
  for (std::string what; std::cin >> what;) {
    recfn::Reading now{};
    double rate = 1;
    std::cin >> now.ticks;
    if (what != "convert") std::cin >> now.monotonic_ns >> now.unix_ns >> now.took_ns;
    if (what == "start") std::cin >> rate, clock.start(now, rate);
    if (what == "begin") clock.begin(now);
    if (what == "anchor") std::cout << clock.anchor(now) << " " << clock.offset_ns() << std::endl;
    if (what == "convert") std::cout << clock.monotonic_ns(now.ticks) << std::endl;
  }
}
"""


SECOND = 1_000_000_000
MOST_TICKS = 1 << 52


class NativeClock:
    """Asks the compiled program."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def ask(self, *words: object) -> list[int]:
        self.tell(*words)
        assert self._process.stdout is not None
        return [int(word) for word in self._process.stdout.readline().split()]

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


readings = st.builds(
    Reading,
    ticks=st.integers(0, MOST_TICKS),
    monotonic_ns=st.integers(0, MOST_TICKS),
    unix_ns=st.integers(0, 1 << 61),
    took_ns=st.one_of(st.integers(20, 200), st.integers(0, 10 * SECOND)),
)


later = st.tuples(st.integers(0, 20 * SECOND), st.integers(-SECOND, SECOND), st.integers(-3 * SECOND, 3 * SECOND))


@pytest.mark.one_python
@given(
    first=readings,
    rate=st.floats(0.1, 10),
    steps=st.lists(st.tuples(st.sampled_from(["anchor", "anchor", "begin"]), st.one_of(later, readings)), max_size=20),
    asked=st.lists(st.integers(0, MOST_TICKS), max_size=5),
)
def test_it_agrees_with_the_model(
    native: NativeClock, first: Reading, rate: float, steps: list[tuple[str, object]], asked: list[int]
) -> None:
    clock, now = ClockMapping(first, rate), first
    native.tell("start", *first, rate)
    for what, step in steps:
        if isinstance(step, Reading):
            now = step
        else:
            elapsed, error, shift = step  # type: ignore[misc]
            now = Reading(
                now.ticks + round(elapsed / rate), now.monotonic_ns + elapsed + error // 1000, now.unix_ns + elapsed + shift, 70
            )
        if what == "begin":
            clock.begin(now)
            native.tell("begin", *now)
        else:
            assert [clock.anchor(now), clock.offset_ns] == native.ask("anchor", *now)
        for ticks in (*asked, now.ticks, now.ticks + 1000, max(0, now.ticks - 12_345_678)):
            assert [clock.monotonic_ns(Ticks(ticks))] == native.ask("convert", ticks)


START = 1_700_000_000_000_000_000
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
