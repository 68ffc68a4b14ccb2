"""What callbacks written in Python cost an operator of PyTorch's, beside an operator that nobody
observes; all in one process.

    python benchmarks/bench_torch_callbacks.py [rounds]

Each side takes a short turn in each of many rounds; the fastest turn counts, in CPU time of the
thread, per operator. The operator is one of the cheapest there are, called from Python. Ratios are
to an operator without callbacks before the library that calls them was loaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lib.command_line import read_number, sized

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from otel_recfn import RecordScope
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, remove_callback

ROUNDS = sized(60, 1)
OPERATORS = sized(5_000, 100)

Setting = Callable[[], AbstractContextManager[Any]]


def main() -> None:
    """Measures all sides in turns and prints them; the first alone, since the library stays once
    it is loaded.
    """
    rounds = read_number(__doc__, "rounds", ROUNDS)
    first = "no callback, library not loaded"
    best = fastest({first: nullcontext}, rounds) | fastest(dict(sides()), rounds)
    for name, nanoseconds in best.items():
        extra = nanoseconds - best[first]
        print(
            f"{name:<36}{nanoseconds:>8.0f} ns  x {nanoseconds / best[first]:.2f}  {extra:>+6.0f}"
            " ns a call"
        )


def sides() -> Iterator[tuple[str, Setting]]:
    """What observes, and how it is set up."""
    with observed_by(no_op()):
        torch.ones(1)  # loads the library
    yield "no callback, library loaded", nullcontext
    yield "callback at 0", lambda: observed_by(no_op().sampling_prob(0.0))
    yield "callback at 0.01", lambda: observed_by(no_op().sampling_prob(0.01))
    yield "callback at 1", lambda: observed_by(no_op())
    yield "callback of another scope", lambda: observed_by(no_op().scopes({RecordScope.USER_SCOPE}))
    yield "start alone", lambda: observed_by(RecordFunctionCallback(lambda _function: None))
    yield (
        "reads the name",
        lambda: observed_by(RecordFunctionCallback(lambda function: function.name())),
    )
    reader = RecordFunctionCallback(lambda function: function.inputs()).needs_inputs(True)
    yield "reads the inputs", lambda: observed_by(reader)


def fastest(settings: dict[str, Setting], rounds: int) -> dict[str, float]:
    """Nanoseconds per operator of the fastest turn of each side."""
    best = dict.fromkeys(settings, float("inf"))
    for _ in range(rounds):
        for name, setting in settings.items():
            with setting():
                best[name] = min(best[name], turn())
    return best


def turn() -> float:
    tensor = torch.ones(1)
    run(tensor, OPERATORS // 10)
    started = time.thread_time_ns()
    run(tensor, OPERATORS)
    return (time.thread_time_ns() - started) / OPERATORS


def run(tensor: Any, times: int) -> None:
    for _ in range(times):
        tensor.is_set_to(tensor)


def no_op() -> RecordFunctionCallback:
    """A pair that does nothing."""
    return RecordFunctionCallback(lambda _function: None, lambda _function, _context: None)


@contextmanager
def observed_by(callback: RecordFunctionCallback) -> Iterator[None]:
    handle = add_global_callback(callback)
    try:
        yield
    finally:
        remove_callback(handle)


if __name__ == "__main__":
    main()
