"""The legacy profiler, ours beside PyTorch's: what an operator costs while it runs, and what its
events cost in the end.

    python benchmarks/bench_legacy.py [rounds] [operators a turn]

Both run in turns in one process, and the fastest turn of each counts. "an operator" is its time
under the profiler less that without. "consolidating" is the time to disable: then PyTorch has
wrapped its C++ events; ours are in order, as columns. "and reading" is that with reading every
event once, as the table of PyTorch's legacy profiler does: ours makes its events then, PyTorch's
makes Python values at each look.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from lib.command_line import read_numbers, sized
from lib.compilers import build_folder
from lib.operator_loop import loaded_loop
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import ProfilerConfig as TheirConfig
from torch.autograd import ProfilerState as TheirState

from otel_recfn.legacy import (
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
)

ROUNDS = sized(20, 1)
OPERATORS = sized(5_000, 100)
EVENTS_PER_OPERATOR = 2
Settings = tuple[bool, bool, bool]
"""Shapes, memory, stacks."""
SETTINGS: dict[str, Settings] = {
    "plain": (False, False, False),
    "with shapes": (True, False, False),
    "with shapes and memory": (True, True, False),
    "with stacks": (False, False, True),
}


class Turn(NamedTuple):
    """Nanoseconds per operator."""

    operator: float
    consolidated: float
    read: float


class Side(NamedTuple):
    """A profiler with its settings."""

    enable: Callable[[], object]
    disable: Callable[[], list[list[Any]]]
    read: Callable[[list[Any]], object]
    """What ``torch.autograd.profiler_legacy.profile`` reads to make its table."""


def main() -> None:
    """Measures both and prints them."""
    rounds, operators = read_numbers(__doc__, rounds=ROUNDS, operators=OPERATORS)
    warnings.simplefilter("ignore")
    with build_folder() as folder:
        loop = loaded_loop(folder)
        print(f"{'legacy profiler, ns per operator':<40}{'PyTorch':>10}{'ours':>10}{'ratio':>8}")
        for name, settings in SETTINGS.items():
            report(name, *compared(loop, settings, rounds, operators))


def compared(loop: Any, settings: Settings, rounds: int, operators: int) -> tuple[Turn, Turn]:
    """The best of theirs and ours, with the operator's own time taken off."""
    sides = (theirs(*settings), ours(*settings))
    plain = float("inf")
    best = [Turn(*[float("inf")] * 3)] * len(sides)
    for _ in range(rounds):
        plain = min(plain, loop.time_operators(operators))
        for number, side in enumerate(sides):
            best[number] = Turn(*map(min, best[number], turn(loop, side, operators)))
    first, second = (each._replace(operator=each.operator - plain) for each in best)
    return first, second


def turn(loop: Any, side: Side, operators: int) -> Turn:
    side.enable()
    operator = loop.time_operators(operators)
    started = time.perf_counter_ns()
    lists = side.disable()
    consolidated = time.perf_counter_ns()
    for each in lists:
        side.read(each)
    read = time.perf_counter_ns()
    assert sum(map(len, lists)) >= EVENTS_PER_OPERATOR * operators
    return Turn(operator, (consolidated - started) / operators, (read - started) / operators)


def theirs(shapes: bool, memory: bool, stack: bool) -> Side:
    config = TheirConfig(TheirState.CPU, shapes, memory, stack, False, False, _ExperimentalConfig())
    return Side(
        lambda: torch.autograd._enable_profiler_legacy(config),
        torch.autograd._disable_profiler_legacy,
        read_theirs,
    )


def ours(shapes: bool, memory: bool, stack: bool) -> Side:
    config = ProfilerConfig(ProfilerState.CPU, shapes, memory, stack)
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
    for what, first, second in zip(
        ("an operator", "consolidating", "and reading"), their, our, strict=True
    ):
        print(f"{f'{name}, {what}':<40}{first:>10,.0f}{second:>10,.0f}{second / first:>8.2f}")


if __name__ == "__main__":
    main()
