"""Calls generated wrappers of PyTorch's operators as PyTorch's own samples do, and compares results
with the direct call.

    python scripts/wrappers_against_operators.py [--seconds 300] [--match add] [--out DIR]

Every operator that a sample runs is called on copies of its arguments: directly, and through its
wrapper, which is idle then, observed by a callback that needs inputs, or traced. Prints how many
operators and calls were compared, and each difference.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from otel_recfn.codegen.modules import WrapperRequest, generate, write
from otel_recfn.codegen.python_words import parameter_name
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, remove_callback
from otel_recfn.tracing.graph import Tracer, tracing_into

ANY_CONTENT = ("empty", "resize", "_efficientzerotensor")
"""Operators, by the begin of their names, whose results have no defined content."""
REPETITIONS = 10
"""Where a result differs, so many direct calls tell whether these differ among themselves."""
SAME_CALLS = 6
"""So many calls of an operator are compared for one OpInfo."""


class Comparison(TorchDispatchMode):
    """Compares each operator that runs with its wrapper."""

    def __init__(self, wrappers: Any) -> None:
        super().__init__()
        self.wrappers = wrappers
        self.compared: Counter[str] = Counter()
        self.differences: dict[str, str] = {}
        self.unsteady: Counter[str] = Counter()
        self.not_compared: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"{func._schema.name}.{func._overloadname}".removesuffix(".default")
        self.seen[name] += 1
        if self.seen[name] <= SAME_CALLS:
            self._compare(name, func, args, kwargs)
        return func(*args, **kwargs)

    def _compare(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        in_python = name.removeprefix("aten::").replace(".", "_")
        wrapper = getattr(self.wrappers, in_python, None) or getattr(
            self.wrappers, f"{in_python}_", None
        )
        if wrapper is None or not name.startswith("aten::"):
            self.not_compared[name] += 1
            return
        direct = outcome(func, args, kwargs)
        renamed = {parameter_name(key): value for key, value in kwargs.items()}
        for way in (nullcontext, observed, traced):
            with way():
                ours = outcome(wrapper, args, renamed)
            if same(direct, ours, any_content=any(part in name for part in ANY_CONTENT)):
                continue
            # All kept: each in memory of its own.
            again = [outcome(func, args, kwargs) for _ in range(REPETITIONS)]
            if all(same(direct, each, any_content=False) for each in again):
                self.differences[name] = f"{way.__name__}: {direct!r:.150} != {ours!r:.150}"
            else:
                self.unsteady[name] += 1
        self.compared[name] += 1


def outcome(function: Any, args: Any, kwargs: Any) -> Any:
    """Results, and what became of the arguments; or the error's type."""
    args, kwargs = tree_map(copied, (args, kwargs))
    torch.manual_seed(0)
    try:
        return function(*args, **kwargs), args, kwargs
    except Exception as error:
        return type(error)


def copied(value: Any) -> Any:
    """A tensor with the same content and strides."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


@contextmanager
def observed() -> Iterator[None]:
    """A callback sees the ranges and their inputs."""
    handle = add_global_callback(
        RecordFunctionCallback(lambda fn: fn.inputs() and None)
        .needs_inputs(True)
        .needs_outputs(True)
    )
    yield
    remove_callback(handle)


@contextmanager
def traced() -> Iterator[None]:
    """Calls go into a graph."""
    with tracing_into(Tracer()):
        yield


def same(one: Any, other: Any, *, any_content: bool) -> bool:
    """Whether all tensors and values are the same."""
    (ones, form) = tree_flatten(one)
    (others, other_form) = tree_flatten(other)
    return form == other_form and all(
        same_value(*pair, any_content) for pair in zip(ones, others, strict=True)
    )


def same_value(one: Any, other: Any, any_content: bool) -> bool:
    """Whether two values are the same, bit by bit."""
    if not isinstance(one, torch.Tensor):
        return one == other or (one != one and other != other)
    if (one.shape, one.dtype, one.layout, one.device) != (
        other.shape,
        other.dtype,
        other.layout,
        other.device,
    ):
        return False
    if any_content:
        return True
    if one.layout is not torch.strided:
        one = one.to_dense()
        other = other.to_dense()
    return (
        torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        if one.dtype.is_floating_point
        else torch.equal(one, other)
    )


def generated_wrappers(folder: Path) -> Any:
    """A module with the wrappers of all operators."""
    started = time.process_time()
    native = Path(torch.__file__).parents[1] / "torchgen" / "packaged" / "ATen" / "native"
    made = generate(WrapperRequest(native / "native_functions.yaml", shards=5))
    write(folder / "all_wrappers", made.texts)
    print(f"{made.wrapped} wrappers generated in {time.process_time() - started:.1f} s of CPU time")
    sys.path.insert(0, str(folder))
    started = time.process_time()
    module = importlib.import_module("all_wrappers")
    print(f"imported in {time.process_time() - started:.1f} s, the first time")
    return module


def main() -> int:
    """Compare; 1 where something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="stop after so many")
    parser.add_argument("--match", default="", help="only OpInfos whose name has this in it")
    parser.add_argument("--out", type=Path, help="keep the wrappers there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # Needs pip install expecttest.
    from torch.testing._internal.common_methods_invocations import op_db

    with tempfile.TemporaryDirectory() as temporary:
        comparison = Comparison(generated_wrappers(options.out or Path(temporary)))
        started = time.monotonic()
        infos = 0
        for info in op_db:
            if options.match in info.name and time.monotonic() - started < options.seconds:
                infos += 1
                run_samples(info, comparison)
    return report(comparison, infos)


def run_samples(info: Any, comparison: Comparison) -> None:
    """Run an OpInfo's samples, also in place and into ``out``."""
    comparison.seen.clear()
    dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes), None)
    try:
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))[:SAME_CALLS]
    except Exception:  # samples that need what isn't here
        return
    for sample in samples:
        for variant in (
            info.op,
            info.inplace_variant,
            with_out(info) if info.supports_out else None,
        ):
            if variant is not None:
                with comparison:
                    try:
                        variant(
                            copied(sample.input),
                            *tree_map(copied, sample.args),
                            **tree_map(copied, sample.kwargs),
                        )
                    except Exception:  # a sample that is there to raise
                        continue


def with_out(info: Any) -> Any:
    """The operator, once more into the result that it had."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return info.op(*args, **kwargs, out=tree_map(torch.empty_like, info.op(*args, **kwargs)))

    return call


def report(comparison: Comparison, infos: int) -> int:
    """Print what was compared, and what differs."""
    calls = sum(comparison.compared.values())
    print(
        f"{infos} OpInfos: {len(comparison.compared)} operators in {calls} calls, each idle,"
        " observed and traced"
    )
    print(f"without a wrapper: {', '.join(sorted(comparison.not_compared)) or 'none'}")
    print(
        "directly called twice with other results:"
        f" {', '.join(sorted(comparison.unsteady)) or 'none'}"
    )
    for name, difference in sorted(comparison.differences.items()):
        print(f"DIFFERS {name} {difference}")
    return 1 if comparison.differences or not calls else 0


if __name__ == "__main__":
    sys.exit(main())
