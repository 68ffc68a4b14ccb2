"""What callbacks written in Python cost a range, beside a range that nobody or the recorder alone
observes; all in one process.

    python benchmarks/bench_callbacks.py [rounds]

Each side takes a short turn in each of many rounds; the fastest turn counts,
in CPU time of the thread, less that of an empty loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lib.command_line import read_number, sized

from otel_recfn import record_function
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import add_global_callback, remove_callback
from otel_recfn.model.events import ALL_SCOPES_MASK, RecordScope
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES

ROUNDS = sized(60, 1)
RANGES = sized(5_000, 500)

Setting = Callable[[], AbstractContextManager[Any]]
Side = tuple[str, Callable[[], float]]
"""A name, and a turn: nanoseconds per range."""


def main() -> None:
    """Measures all sides in turns and prints them."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    report("a range in Python", fastest(list(range_sides()), rounds))


def fastest(sides: list[Side], rounds: int) -> dict[str, float]:
    """Nanoseconds of the fastest turn of each side."""
    best = {name: float("inf") for name, _ in sides}
    for _ in range(rounds):
        for name, turn in sides:
            best[name] = min(best[name], turn())
    return best


def range_sides() -> Iterator[Side]:
    """``with <range>: pass`` under each setting; ``none`` is the loop alone."""
    ours = "with R('range'): pass"
    names = {"R": record_function}
    yield "none", side("pass", {}, nullcontext)
    yield "record_function, idle", side(ours, names, nullcontext)
    yield "record_function, recorder", side(ours, names, recording)
    yield "record_function, callback", side(ours, names, observed_by(no_op()))
    yield (
        "record_function, callback needs ids",
        side(ours, names, observed_by(no_op().needs_ids(True))),
    )
    yield (
        "record_function, callback at 0.01",
        side(ours, names, observed_by(no_op().sampling_prob(0.01))),
    )
    yield (
        "record_function, callback at 0",
        side(ours, names, observed_by(no_op().sampling_prob(0.0))),
    )
    yield "record_function, callback and recorder", side(ours, names, recording_and_observed)
    made = {"R": RecordFunction, "S": RecordScope.FUNCTION}
    yield "RecordFunction, idle", side("R(S).before('range')", made, nullcontext)
    yield (
        "RecordFunction, callback",
        side("with R(S) as r: r.before('range')", made, observed_by(no_op())),
    )


def side(statement: str, names: dict[str, Any], setting: Setting) -> Callable[[], float]:
    """A turn of the statement under the setting."""
    space = dict(names)
    exec(f"def loop(times):\n    for _ in times:\n        {statement}", space)

    def turn() -> float:
        with setting():
            space["loop"](range(RANGES // 10))
            started = time.thread_time_ns()
            space["loop"](range(RANGES))
            return (time.thread_time_ns() - started) / RANGES

    return turn


def no_op() -> RecordFunctionCallback:
    """A pair that does nothing."""
    return RecordFunctionCallback(lambda fn: None, lambda fn, context: None)


def observed_by(callback: RecordFunctionCallback) -> Setting:
    """A setting with that callback."""

    @contextmanager
    def setting() -> Iterator[None]:
        handle = add_global_callback(callback)
        yield
        remove_callback(handle)

    return setting


@contextmanager
def recording() -> Iterator[None]:
    """The recorder alone."""
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    yield
    recorder.stop()
    assert len(recorder.drain(close_open=True)) >= RANGES


@contextmanager
def recording_and_observed() -> Iterator[None]:
    """The recorder and a callback."""
    with recording(), observed_by(no_op())():
        yield


def report(what: str, best: dict[str, float]) -> None:
    """A line per side, less the loop; beside a range that nobody observes."""
    none = best.pop("none")
    idle = best["record_function, idle"] - none
    print(f"{what:<42}{'ns':>10}{'x idle':>10}")
    for name, nanoseconds in best.items():
        print(f"{name:<42}{nanoseconds - none:>10,.1f}{(nanoseconds - none) / idle:>10.2f}")


if __name__ == "__main__":
    main()
