"""What a generated wrapper adds to a call of its operator, beside the direct call; all in one
process.

    python benchmarks/bench_wrappers.py [rounds]

Both sides take short turns, in many rounds; the fastest turn counts, in CPU time of the thread. The
operators are PyTorch's and one of Python; the wrappers are written and imported here.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lib.command_line import read_number, sized

from otel_recfn import profile
from otel_recfn.codegen.modules import WrapperRequest, generate, write
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, remove_callback
from otel_recfn.tracing.graph import Tracer, tracing_into

ROUNDS = sized(100, 1)
CALLS = sized(2_000, 100)
LIMIT_NS = 250
"""A wrapper may add so much where nobody observes."""
SCHEMAS = """
- func: relu(Tensor self) -> Tensor
- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
- func: sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *,
    ScalarType? dtype=None) -> Tensor
- func: add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
- func: addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
"""
IN_PYTHON = "- func: bench::nothing(Tensor self, Tensor other) -> Tensor\n"


def nothing(_self: Any, other: Any) -> Any:
    """An operator of Python's that does nothing."""
    return other


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rounds = read_number(__doc__, "rounds", ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        torch_wrappers = wrappers(Path(folder), "torch_wrappers", SCHEMAS, "")
        python_wrappers = wrappers(
            Path(folder), "python_wrappers", IN_PYTHON, f"{__name__}:BY_NAME"
        )
    x = torch.rand(4)
    aten = torch.ops.aten
    matrix = torch.rand(4, 4)
    pairs: dict[
        str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    ] = {
        "relu": (aten.relu.default, torch_wrappers.relu, (x,), {}),
        "add": (aten.add.Tensor, torch_wrappers.add_Tensor, (x, x), {}),
        "add with alpha": (aten.add.Tensor, torch_wrappers.add_Tensor, (x, x), {"alpha": 2}),
        "sum": (aten.sum.dim_IntList, torch_wrappers.sum_dim_IntList, (x, [0]), {}),
        "add into out": (aten.add.out, torch_wrappers.add_out, (x, x), {"out": x}),
        "addmm": (aten.addmm.default, torch_wrappers.addmm, (matrix, matrix, matrix), {}),
        "of Python": (nothing, python_wrappers.nothing, (x, x), {}),
    }
    print(f"{'nobody observes':<18}{'direct ns':>10}{'wrapper ns':>12}{'adds ns':>9}{'ratio':>7}")
    added = [idle(name, *pair, rounds=rounds) for name, pair in pairs.items()]
    observed(python_wrappers.nothing, x, rounds)
    print(
        f"\nthe most that one adds where nobody observes: {max(added):.0f} ns; it may be {LIMIT_NS}"
    )


BY_NAME = {"nothing": nothing}


def wrappers(folder: Path, name: str, schemas: str, dispatch: str) -> Any:
    """A module of wrappers."""
    file = folder / f"{name}.yaml"
    file.write_text(schemas, encoding="utf-8")
    write(folder / name, generate(WrapperRequest(file, dispatch)).texts)
    return importlib.import_module(name)


def idle(
    name: str,
    direct: Callable[..., Any],
    wrapper: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    rounds: int,
) -> float:
    """Nanoseconds that a wrapper adds."""
    turns = [turn_of(function, args, kwargs) for function in (direct, wrapper)]
    best = fastest(turns, rounds)
    print(
        f"{name:<18}{best[0]:>10,.0f}{best[1]:>12,.0f}"
        f"{best[1] - best[0]:>9,.0f}{best[1] / best[0]:>7.2f}"
    )
    return best[1] - best[0]


def observed(wrapper: Callable[..., Any], x: Any, rounds: int) -> None:
    """Print what a call of the wrapper in Python costs where somebody observes."""
    turn = turn_of(wrapper, (x, x), {})
    print("\nsomebody observes, of Python")
    with profile():
        print(f"{'recorder':<18}{fastest([turn], rounds // 10)[0]:>10,.0f}")
    handle = add_global_callback(RecordFunctionCallback(lambda fn: None))
    print(f"{'callback':<18}{fastest([turn], rounds // 10)[0]:>10,.0f}")
    remove_callback(handle)
    with tracing_into(Tracer()):
        print(f"{'traced':<18}{fastest([turn], rounds // 10)[0]:>10,.0f}")


def turn_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], float]:
    """A turn: nanoseconds per call, written out as a program does."""
    names = {f"a{number}": value for number, value in enumerate(args)} | {
        "function": function,
        **kwargs,
    }
    call = ", ".join(
        [*(f"a{number}" for number in range(len(args))), *(f"{key}={key}" for key in kwargs)]
    )
    exec(f"def loop(times):\n    for _ in times:\n        function({call})", names)

    def turn() -> float:
        started = time.thread_time_ns()
        names["loop"](range(CALLS))
        return (time.thread_time_ns() - started) / CALLS

    return turn


def fastest(turns: list[Callable[[], float]], rounds: int) -> list[float]:
    """The fastest turn of each."""
    best = [float("inf")] * len(turns)
    for _ in range(max(1, rounds)):
        for number, turn in enumerate(turns):
            best[number] = min(best[number], turn())
    return best


if __name__ == "__main__":
    main()
