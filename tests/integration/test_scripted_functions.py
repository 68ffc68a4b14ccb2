"""torch.jit.script compiles what record_function and step decorate, with its globals and
helpers, also methods.
"""

from __future__ import annotations

from typing import Any

import pytest

from otel_recfn import record_function, step

torch = pytest.importorskip("torch")

from helpers.torch_programs import scripted  # noqa: E402

pytestmark = pytest.mark.torch


def make(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@record_function("func")
def func(x: torch.Tensor) -> torch.Tensor:
    return make(x) + 1


@record_function("with helpers")
def with_helpers(x: torch.Tensor, offset: float = 0.5) -> torch.Tensor:
    if torch.numel(x) > 1:
        x = torch.relu(x)
    return func(x) + offset


@step("stepped")
def stepped(x: torch.Tensor) -> torch.Tensor:
    return func(x)


@record_function("outer")
@record_function("inner")
def twice(x: torch.Tensor) -> torch.Tensor:
    return func(x)


class Decorated(torch.nn.Module):  # type: ignore[misc]
    """A module whose methods are decorated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    @record_function("forward")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.scaled(x)

    @record_function("scaled")
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return with_helpers(x) * 2


@pytest.mark.parametrize(
    "program",
    [func, with_helpers, stepped, twice, Decorated()],
    ids=lambda each: type(each).__name__,
)
def test_what_is_decorated_is_scripted(program: Any) -> None:
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(scripted(program)(x), program(x))


def test_a_wrapper_has_the_globals_of_what_it_wraps() -> None:
    assert func.__globals__ is globals()
    assert func.__wrapped__.__name__ == func.__name__ == "func"
