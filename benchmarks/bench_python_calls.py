"""What it costs to trace a Python call, beside the peers, all in one process.

    python benchmarks/bench_python_calls.py [rounds]

The machine may be busy: every side takes a short turn in each of many rounds, and the fastest turn
of each counts. The floor is what CPython itself takes to tell of a call and of its return: an empty
profile function in C, and from 3.12 on also empty callbacks of ``sys.monitoring``. Whoever wants to
know when a call began and ended reads the clock twice: so the same floors are there with that.
Peers that are not installed are left out (VizTracer, torch). Turns are so short that what a side
keeps fits
its buffers: what drains them works beside it.

Functions that do nothing come first, then a program as there are many: `re` compiles a pattern, by
Python and C calls. Where each function is "new" to a side, it costs more than where it was "seen"
before.
"""

from __future__ import annotations

import cProfile
import importlib.util
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lib.command_line import read_number, sized
from lib.compilers import build_folder
from lib.empty_profile import compiled, monitored, profiled, profiled_by_clock

from otel_recfn import profile

ROUNDS = sized(100, 1)
CALLS = sized(5_000, 100)
BYTES_PER_CALL = 32  # a begin and an end in the thread's ring (native/core/record.hpp)


def called() -> None:
    pass


def python_calls() -> None:
    for _ in range(CALLS):
        called()


def c_calls(c_function: Callable[[str], int] = len) -> None:
    for _ in range(CALLS):
        c_function("")


def program() -> None:
    re.purge()
    re.compile(
        "".join([f"(?P<part{number}>[a-z{number}]+|x{{2,{number + 2}}}?)" for number in range(18)])
    )


def calls_of(work: Callable[[], None]) -> int:
    """How many Python and C calls it makes."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    work()
    sys.setprofile(None)
    return sum([event in ("call", "c_call") for event in events])


@contextmanager
def under_viztracer() -> Iterator[None]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, tracer_entries=4 * CALLS)
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()
        tracer.clear()
        threading.setprofile(None)  # VizTracer leaves its own there


def under_torch() -> AbstractContextManager[Any]:
    import torch

    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True)


def turn(
    work: Callable[[], None], side: Callable[[], AbstractContextManager[Any]], *, seen: bool
) -> float:
    """Nanoseconds.

    Args:
        work: what is measured.
        side: what looks on.
        seen: it has looked on once before.
    """
    with side():
        if seen:
            work()
        began = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - began


def main(rounds: int) -> None:
    with build_folder() as folder:
        floor = compiled(folder)
        sides: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            "nothing": nullcontext,
            "empty C profile function": lambda: profiled(floor),
            "C profile function: the clock": lambda: profiled_by_clock(floor),
            "otel-recfn": lambda: profile(python_calls=True),
            "cProfile": cProfile.Profile,
        }
        if hasattr(sys, "monitoring"):
            sides["empty callbacks of sys.monitoring"] = lambda: monitored(floor)
            sides["callbacks of it: the clock"] = lambda: monitored(floor, clock=True)
        if importlib.util.find_spec("viztracer"):
            sides["VizTracer"] = under_viztracer
        if importlib.util.find_spec("torch"):
            sides["torch.profiler(with_stack=True)"] = under_torch
        print(
            f"CPython {sys.version.split()[0]}; ns per call, the fastest of {rounds} turns; times"
            " the floors"
        )
        print(f"otel-recfn: {BYTES_PER_CALL} bytes a call")
        for work, seen in (
            (python_calls, True),
            (c_calls, True),
            (program, False),
            (program, True),
        ):
            calls = calls_of(work)
            turns = [
                {name: turn(work, side, seen=seen) for name, side in sides.items()}
                for _ in range(rounds)
            ]
            best = {name: min([each[name] for each in turns]) / calls for name in sides}
            for name, cost in best.items():
                floors = [
                    cost / best[each]
                    for each in sides
                    if each.startswith("empty") or each.endswith("the clock")
                ]
                ratios = ", ".join([f"{ratio:.2f}" for ratio in floors])
                print(
                    f"  {work.__name__:13}{'seen' if seen else 'new':5} {name:34} {cost:7.1f}  "
                    f" {ratios}"
                )


if __name__ == "__main__":
    main(read_number(__doc__, "rounds", ROUNDS))
