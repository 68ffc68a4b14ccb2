"""PyTorch's reports of memory, as we and as torch.profiler get them; and the program's Python inside an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from observed import Observed  # noqa: E402
from torch.autograd import profiler_legacy  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from otel_recfn.model.batch import Event  # noqa: E402
from otel_recfn.model.events import EventKind  # noqa: E402

NUMBERS = 1000
BYTES = 4 * NUMBERS

_inside: list[Callable[[], object]] = []


@torch.library.custom_op("recfn_tests::run_inside", mutates_args=(), schema="(Tensor x) -> Tensor")  # type: ignore[untyped-decorator]
def _run_inside(x: torch.Tensor) -> torch.Tensor:
    for work in _inside:
        work()
    return x + 1


class Intruder(torch.Tensor):  # type: ignore[misc]
    """Runs the program's Python inside PyTorch's own operators."""

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for work in _inside:
            work()
        return torch.ones(2)


def inside_an_operator_of_the_program(work: Callable[[], object]) -> None:
    _inside.append(work)
    try:
        _run_inside(torch.ones(2))
    finally:
        _inside.clear()


def inside_an_operator_of_pytorch(work: Callable[[], object]) -> None:
    intruder = torch.ones(2).as_subclass(Intruder)
    _inside.append(work)
    try:
        intruder.cos()
    finally:
        _inside.clear()


def reports(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == EventKind.MEMORY]


def recorded(run: Observed) -> bool:
    """Whether memory is recorded in this thread now."""
    run.events()
    torch.ones(NUMBERS)
    return BYTES in {event.nbytes for event in reports(run.events())}


def profiler_of_torch(**options: Any) -> Any:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, **options)


def reported_to(theirs: Any) -> list[int]:
    """Bytes, as torch.profiler was told."""
    return [event.nbytes() for event in theirs.profiler.kineto_results.events() if event.name() == "[memory]"]


def nothing_is_left() -> None:
    """The legacy profiler refuses to start where anything is in PyTorch's place for profilers."""
    with profiler_legacy.profile():
        pass
