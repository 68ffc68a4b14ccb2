"""The legacy profiler, ours beside PyTorch's: what an operator costs while it runs, and what its events cost in the end.

    python benchmarks/bench_legacy.py [rounds]

Both run in turns in one process, and the fastest turn of each counts. "an operator" is its time under the profiler less that
without; "its events" is the time to disable and to read every event once: ours makes Python objects when it is
disabled, PyTorch's wraps its C++ ones and makes Python values at each look.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from operator_loop import loaded_loop
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import ProfilerConfig as TheirConfig
from torch.autograd import ProfilerState as TheirState

from otel_recfn.legacy import ProfilerConfig, ProfilerState, disable_profiler_legacy, enable_profiler_legacy

ROUNDS = 20
OPERATORS = 5_000
EVENTS_PER_OPERATOR = 2


class Turn(NamedTuple):
    """Nanoseconds per operator."""

    operator: float
    events: float


class Side(NamedTuple):
    """A profiler with its settings."""

    enable: Callable[[], object]
    disable: Callable[[], list[list[Any]]]
    read: Callable[[list[Any]], object]
    """What ``torch.autograd.profiler_legacy.profile`` reads to make its table."""


def main() -> None:
    """Measures both and prints them."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        loop = loaded_loop(Path(folder))
        print(f"{'legacy profiler, ns per operator':<34}{'PyTorch':>10}{'ours':>10}{'ratio':>8}")
        for name, settings in (("plain", (False, False)), ("with shapes", (True, False)), ("with stacks", (False, True))):
            report(name, *compared(loop, settings, rounds))


def compared(loop: Any, settings: tuple[bool, bool], rounds: int) -> tuple[Turn, Turn]:
    """The best of theirs and ours, with the operator's own time taken off."""
    sides = (theirs(*settings), ours(*settings))
    plain, best = float("inf"), [Turn(float("inf"), float("inf"))] * len(sides)
    for _ in range(rounds):
        plain = min(plain, loop.time_operators(OPERATORS))
        for number, side in enumerate(sides):
            best[number] = Turn(*map(min, best[number], turn(loop, side)))
    first, second = (each._replace(operator=each.operator - plain) for each in best)
    return first, second


def turn(loop: Any, side: Side) -> Turn:
    side.enable()
    operator = loop.time_operators(OPERATORS)
    started = time.perf_counter_ns()
    lists = side.disable()
    for each in lists:
        side.read(each)
    events = (time.perf_counter_ns() - started) / OPERATORS
    assert sum(map(len, lists)) >= EVENTS_PER_OPERATOR * OPERATORS
    return Turn(operator, events)


def theirs(shapes: bool, stack: bool) -> Side:
    config = TheirConfig(TheirState.CPU, shapes, False, stack, False, False, _ExperimentalConfig())
    return Side(lambda: torch.autograd._enable_profiler_legacy(config), torch.autograd._disable_profiler_legacy, read_theirs)


def ours(shapes: bool, stack: bool) -> Side:
    config = ProfilerConfig(ProfilerState.CPU, report_input_shapes=shapes, with_stack=stack)
    return Side(lambda: enable_profiler_legacy(config), disable_profiler_legacy, read_ours)


def read_theirs(events: list[Any]) -> list[tuple[Any, ...]]:
    first = events[0]
    return [
        (
            first.cpu_elapsed_us(event),
            event.kind(),
            event.name(),
            event.thread_id(),
            event.handle(),
            event.node_id(),
            event.is_async(),
            event.shapes(),
            event.stack(),
            event.sequence_nr(),
            event.scope(),
        )
        for event in events
    ]


def read_ours(events: list[Any]) -> list[tuple[Any, ...]]:
    first = events[0]
    return [
        (
            first.cpu_elapsed_us(event),
            event.kind_str,
            event.name,
            event.thread_id,
            event.handle,
            event.node_id,
            event.is_async,
            event.shapes,
            event.stack,
            event.sequence_nr,
            event.scope,
        )
        for event in events
    ]


def report(name: str, their: Turn, our: Turn) -> None:
    for what, first, second in (("an operator", their.operator, our.operator), ("its events", their.events, our.events)):
        print(f"{f'{name}, {what}':<34}{first:>10,.0f}{second:>10,.0f}{second / first:>8.2f}")


if __name__ == "__main__":
    main()
