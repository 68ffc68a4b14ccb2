"""The numbers among operators' inputs: the same texts as in torch.profiler's traces, operator by
operator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.trace_files import events_in
from otel_recfn import OtelRecordFunctionInstrumentor

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity  # noqa: E402

from helpers.torch_programs import Training  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.one_python]

NUMBERS = [
    *(
        0,
        7,
        -1,
        (1 << 31) - 1,
        -(1 << 31),
        1 << 31,
        -(1 << 31) - 1,
        (1 << 63) - 1,
        -(1 << 63),
        True,
        False,
    ),
    *(
        0.0,
        -0.0,
        1.0,
        -3.0,
        0.1,
        1 / 3,
        1e10,
        1e18,
        2.0**63,
        -(2.0**63),
        -1.5 * 2.0**63,
        1e300,
        5e-324,
    ),
    *(float("inf"), -float("inf"), float("nan")),
    *(1 + 2j, -1.5 - 0.25j, 1e20j, complex(0.0, -0.0), complex(float("inf"), float("nan"))),
]
TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def fill_with(number: Any) -> Any:
    return torch.full((1,), number, dtype=TYPES[type(number)])


def call_with_lists() -> None:
    x = torch.ones(2, 3)
    x.view(3, 2).sum(())
    torch.zeros([1] * 30).shape, torch.zeros([1] * 31).shape
    torch.cat([x, x], 1)
    torch._foreach_add([x, x], [1, 2.5])
    torch._foreach_mul([x] * 30, 2.5)
    x[torch.tensor([0, 1]), torch.tensor([1, 2])]
    torch.div(x, 2, rounding_mode="floor")
    torch.nn.functional.interpolate(x[None], scale_factor=1.5)
    torch.nn.functional.conv2d(
        torch.ones(1, 2, 5, 5), torch.ones(4, 1, 3, 3), padding=(1, 2), groups=2
    )
    torch.nn.functional.conv2d(
        torch.ones(1, 2, 5, 5), torch.ones(4, 1, 3, 3), padding="same", groups=2
    )
    torch.einsum("ij,kj->ik", x, x)
    torch.empty_strided([1] * 30, [1] * 30).roll([1] * 2, [0, 1])


def fill_with_each() -> None:
    for number in NUMBERS:
        fill_with(number)


def operators(path: Path, id_name: str) -> list[tuple[str, list[Any], list[str] | None]]:
    """Of this thread, in the order of their begins."""
    here = threading.get_native_id()
    found = [
        event for event in events_in(path, "X") if event["cat"] == "cpu_op" and event["tid"] == here
    ]
    found.sort(key=lambda event: event["args"][id_name])
    return [
        (event["name"], event["args"].get("Input Dims", []), event["args"].get("Concrete Inputs"))
        for event in found
    ]


@pytest.mark.parametrize("program", [Training, fill_with_each, call_with_lists])
def test_they_are_those_of_torch_profiler(
    instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path, program: Callable[[], Any]
) -> None:
    made = program()
    run = made.step if isinstance(made, Training) else program
    run()
    ours = tmp_path / "ours.json"
    theirs = tmp_path / "theirs.json"
    instrumentor.instrument(chrome_trace=ours, record_shapes=True)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
        instrumentor.uninstrument()
    profiler.export_chrome_trace(str(theirs))
    expected = operators(theirs, "External id")
    assert operators(ours, "Event id") == expected
    assert any(any(texts or ()) for _, _, texts in expected)
