"""A program whose signal handler runs at the Nth line of ours, for one N after the other. Prints what went wrong.

    python tests/interrupted_anywhere.py profile legacy 1 1

The last numbers say which line is tried first, and every which line from there on.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from typing import Any

from interruption import Interruption
from otel_recfn import profile, record_function
from otel_recfn.legacy import (
    EventKind,
    ProfilerConfig,
    ProfilerError,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
    profiler_enabled,
)
from otel_recfn.recording.recorder import recorder

INTERRUPTED, HANDLED = sys.argv[1:3]
FIRST, EVERY = map(int, sys.argv[3:5])

wrong: list[tuple[int, str, str]] = []


def profiled(name: str) -> list[str]:
    prof = profile()
    try:
        prof.start()
        with record_function(name):
            pass
        prof.stop()
    except KeyboardInterrupt:
        prof.stop()
        raise
    return [event.name for event in prof.events()]


def legacy(name: str) -> list[str]:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    with record_function(name):
        pass
    return [event.name for events in disable_profiler_legacy() for event in events if event.kind == EventKind.PUSH_RANGE]


WORK = {"profile": profiled, "legacy": legacy}


def check(line: int, place: str, name: str, found: list[str]) -> None:
    if found.count(name) != 1:
        wrong.append((line, place, f"{name}: {found}"))


def run(line: int) -> bool:
    """Whether there was such a line."""
    left: list[Any] = []
    name = "in the program"
    may_raise: tuple[type[BaseException], ...] = (KeyboardInterrupt,) if HANDLED == "raise" else ()

    def handler() -> None:
        if HANDLED in WORK:
            with suppress(ProfilerError):  # the thread's only legacy run is the one that is interrupted
                check(line, interruption.place, "in the handler", WORK[HANDLED]("in the handler"))
        elif HANDLED == "look":
            standing.events()
        elif HANDLED == "raise":
            raise KeyboardInterrupt
        else:
            left.append(profile())
            left[0].__enter__()

    interruption = Interruption(line, handler, raises=HANDLED == "raise")
    try:
        with interruption:
            found = WORK[INTERRUPTED](name)
    except may_raise:
        check_that_nothing_is_left(line, interruption.place)
    except Exception as error:
        wrong.append((line, interruption.place, repr(error)))
    else:
        check(line, interruption.place, name, found)
    if left:
        with record_function("after it"):
            pass
        left[0].__exit__(None, None, None)
        check(line, interruption.place, "after it", [event.name for event in left[0].events()])
    return bool(interruption.place)


def check_that_nothing_is_left(line: int, place: str) -> None:
    """What was interrupted by an exception records no more, and is no hindrance."""
    if profiler_enabled():
        disable_profiler_legacy()
    if recorder.recording:
        wrong.append((line, place, "something is recorded for nobody"))
    for name, work in WORK.items():
        check(line, place, f"{name} after it", work(f"{name} after it"))


standing = profile(max_events=10)
if HANDLED == "look":
    standing.start()
for line in itertools.count(FIRST, EVERY):
    if not run(line):
        break
print(wrong[:10])
