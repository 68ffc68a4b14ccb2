"""A TorchScript function that waits for a running fork ends in another thread: nothing that runs
afterwards lies in it.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from helpers.exported_traces import Traces  # noqa: E402
from otel_recfn import record_function  # noqa: E402

pytestmark = pytest.mark.torch
LONG = 30


def forking_programs() -> dict[str, Callable[[], object]]:
    """Functions that begin a TorchScript function or a module call, by the name of what they
    begin.
    """

    def work(x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = torch.tanh(x)
        return x

    def waits(x: torch.Tensor, times: int) -> torch.Tensor:
        fork = torch.jit.fork(work, x, times)
        return torch.jit.wait(fork) + 1

    def waits_inside(x: torch.Tensor, times: int) -> torch.Tensor:
        fork = torch.jit.fork(waits, x, times)
        return torch.jit.wait(fork) + torch.neg(x)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)

    x = torch.ones(50_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        scripted = {made.__name__: torch.jit.script(made) for made in (waits, waits_inside, plain)}
        network = torch.jit.trace(torch.nn.Tanh(), x)
    module = torch.nn.Sigmoid()
    programs: dict[str, Callable[[], object]] = {
        "waits": lambda: scripted["waits"](x, LONG),
        "waits_inside": lambda: scripted["waits_inside"](x, LONG),
        "plain": lambda: scripted["plain"](x),
        "TopLevelTracedModule": lambda: network(x),
        "Sigmoid": lambda: module(x),
    }
    for program in [*programs.values(), *programs.values()]:
        program()  # optimized by the second call
    return programs


@pytest.fixture(scope="module")
def programs() -> dict[str, Callable[[], object]]:
    return forking_programs()


NAMES = ["waits", "waits_inside", "plain", "TopLevelTracedModule", "Sigmoid"]
BLOCKS = st.recursive(
    st.sampled_from(NAMES),
    lambda inner: st.tuples(st.sampled_from(["range", "span"]), st.lists(inner, max_size=4)),
    max_leaves=8,
)


def expected(blocks: list[Any], around: tuple[str, ...]) -> Counter[str]:
    """How often what is begun lies in what the program has open."""
    found: Counter[str] = Counter()
    for block in blocks:
        if isinstance(block, str):
            found["/".join([*around, block])] += 1
        else:
            found["/".join([*around, block[0]])] += 1
            found += expected(block[1], (*around, block[0]))
    return found


def play(blocks: list[Any], programs: dict[str, Callable[[], object]], traces: Traces) -> None:
    for block in blocks:
        if isinstance(block, str):
            programs[block]()
        else:
            with (
                record_function("range")
                if block[0] == "range"
                else traces.tracer.start_as_current_span("span")
            ):
                play(block[1], programs, traces)


def begun(traces: Traces) -> Counter[str]:
    """Paths of spans that a program's own names make up, and those just below them."""
    known = {*NAMES, "range", "span", "request"}
    # The number of a module.
    paths = [re.sub(r"_\d+$", "", path) for path in traces.all_paths().elements()]
    return Counter(
        path for path in paths if path.startswith("request") and path.split("/")[-1] in known
    )


@settings(max_examples=40, deadline=None)
@given(blocks=st.lists(BLOCKS, min_size=1, max_size=5))
def test_what_begins_later_lies_in_what_is_open(
    programs: dict[str, Callable[[], object]], blocks: list[Any]
) -> None:
    traces = Traces()
    with traces.tracer.start_as_current_span("request"):
        play(blocks, programs, traces)
    found = begun(traces)
    assert found == expected(blocks, ("request",)) + Counter({"request": 1})
