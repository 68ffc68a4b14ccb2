"""Module calls lie where torch.profiler has them, which records ``Module.__call__`` until it
returns: one run, seen by both.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from helpers.compiled_forms import VERSION, X  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forget_what_was_compiled")]
nn = torch.nn

Line = tuple[int, str]
EXPOSED = ("nn.Module: ", "aten::mul", "aten::relu", "aten::add", "Torch-Compiled Region")


class Block(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 2


class OwnCall(Block):
    """Its class has a __call__ of its own, which hands on its argument as it is."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x)


class Raises(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        raise ValueError("forward")


class Recursive(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any, depth: int = 2) -> Any:
        return self(x, depth - 1) if depth else torch.relu(x)


class Catches(nn.Module):  # type: ignore[misc, name-defined]
    """Goes on after what it calls has raised."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.after = Block()

    def forward(self, x: Any) -> Any:
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            self.inner(x)
        return self.after(x)


def calls(other: Any) -> Callable[..., None]:
    """A hook that calls a module."""

    def hook(_module: Any, *_arguments: Any) -> None:
        other(X)

    return hook


def raises(*_: Any) -> None:
    raise ValueError("hook")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def hooked(module: Any, **hooks: Any) -> Any:
    for register, hook in hooks.items():
        getattr(module, f"register_{register}")(hook)
    return module


def always_called() -> Any:
    module = Raises()
    module.register_forward_hook(calls(Block()), always_call=True)
    return Catches(module)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "plain": Block,
    "a hook": lambda: hooked(Block(), forward_hook=calls(Block())),
    "a hook before": lambda: hooked(Block(), forward_pre_hook=calls(Block())),
    "a hook that is always called, after an exception": always_called,
    "a hook that raises": lambda: Catches(hooked(Block(), forward_hook=raises)),
    "a hook that is interrupted": lambda: Catches(hooked(Block(), forward_hook=interrupted)),
    "a module that raises": lambda: Catches(Raises()),
    "a recursive module": Recursive,
    "a __call__ of its own": lambda: nn.Sequential(OwnCall(), Block()),
    "torch.compile(module)": lambda: torch.compile(Block(), backend="eager"),
    "torch.compile(module) inside a module": lambda: nn.Sequential(
        torch.compile(Block(), backend="eager"), Block()
    ),
    "module.compile()": lambda: compiled_in_place(Block()),
    "module.compile() with a hook": lambda: compiled_in_place(
        hooked(Block(), forward_hook=calls(Block()))
    ),
    "a compiled function that calls modules": lambda: compiled_around(Block()),
    "a compiled method": lambda: compiled_method(Block()),
}


def compiled_in_place(module: Any) -> Any:
    module.compile(backend="eager")
    return module


def compiled_method(module: Any) -> Any:
    module.forward = torch.compile(module.forward, backend="eager")
    return module


def compiled_around(module: Any) -> Any:
    return torch.compile(lambda x: module(x) + 1, backend="eager")


def only_pytorchs_own_warnings() -> None:
    """Every other warning is an error."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)


def numbered_anew(lines: Iterable[Line]) -> list[Line]:
    """Instances are numbered by whom they were seen."""
    numbers: dict[str, int] = {}
    counts: dict[str, Iterator[int]] = {}

    def name(text: str) -> str:
        if not text.startswith("nn.Module: "):
            return text
        kind = text.rpartition("_")[0]
        if text not in numbers:
            numbers[text] = next(counts.setdefault(kind, itertools.count()))
        return f"{kind}_{numbers[text]}"

    return [(depth, name(text)) for depth, text in lines]


def name_of(node: Any) -> str:
    try:
        return str(node.name)
    except UnicodeDecodeError:  # names of some frames around the profile are no text
        return ""


def lines_of(nodes: Iterable[Any], depth: int = 0) -> Iterator[Line]:
    for node in nodes:
        name = name_of(node)
        shown = name.startswith(EXPOSED)
        if shown:
            yield depth, name
        yield from lines_of(node.children, depth + shown)


def our_lines(events: Iterable[Any]) -> Iterator[Line]:
    inside = {0: 0}
    for event in sorted(events, key=lambda event: event.event_id):
        shown = event.name.startswith(EXPOSED)
        if shown:
            yield inside[event.parent], event.name
        inside[event.event_id] = inside[event.parent] + shown


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_tree(program: str, instrument: Callable[..., Any]) -> None:
    if VERSION < (2, 5) and "compile" in program:
        pytest.skip("PyTorch 2.4 calls modules while it compiles them")
    run = PROGRAMS[program]()
    ours = instrument()
    with warnings.catch_warnings():
        only_pytorchs_own_warnings()
        run(X)
        verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
        with profile(
            activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=verbose
        ) as profiler:
            ours.forget()
            run(X)
            events = ours.events()
    theirs = list(lines_of(profiler.profiler.kineto_results.experimental_event_tree()))
    assert len(theirs) > 2
    assert numbered_anew(our_lines(events)) == numbered_anew(theirs)


@pytest.mark.parametrize("program", [name for name in PROGRAMS if "compile" in name])
def test_torch_compile_sees_nothing_of_us(program: str, instrument: Callable[..., Any]) -> None:
    """The same frames, graphs and recompilations, also where what was compiled before is called
    now.
    """

    def compiled() -> tuple[Any, ...]:
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        run = PROGRAMS[program]()
        for x in (X, X, torch.ones(3, 2), X):
            run(x)
        return run, {
            name: dict(counters[name])
            for name in ("frames", "stats", "graph_break", "unimplemented")
        }

    alone, expected = compiled()
    ours = instrument()
    before = {name: dict(counts) for name, counts in torch._dynamo.utils.counters.items()}
    alone(X)
    assert {name: dict(counts) for name, counts in torch._dynamo.utils.counters.items()} == before
    _, found = compiled()
    ours.finish()
    assert found == expected
    assert found["frames"]["ok"] >= 1
