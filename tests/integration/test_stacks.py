"""The stacks of operators."""

from __future__ import annotations

import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from observed import observed  # noqa: E402

from otel_recfn import record_function  # noqa: E402
from otel_recfn.model.batch import Event  # noqa: E402
from otel_recfn.model.events import Extra, RecordScope  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def stack(events: list[Event], name: str) -> list[str]:
    """Of the first range of that name."""
    return next(event.stack for event in events if event.name == name).splitlines()


def inner() -> int:
    """Returns the line on which its operator stands."""
    torch.ones(2).cos()
    return sys._getframe().f_lineno - 1


def outer() -> int:
    return inner()


@pytest.mark.parametrize("extras", [Extra.STACK, Extra.STACK | Extra.SHAPES])
def test_an_operator_that_python_calls_carries_the_python_stack_innermost_first(extras: Extra) -> None:
    with observed(extras) as run:
        line = outer()
        events = run.events()
    innermost, caller = stack(events, "aten::cos")[:2]
    assert innermost == f"{__file__}({line}): inner"
    assert caller.startswith(f"{__file__}(")
    assert caller.endswith("): outer")


def test_frames_of_our_own_are_left_out() -> None:
    with observed(Extra.STACK) as run:

        @record_function("decorated")
        def decorated() -> None:
            torch.ones(2).cos()

        decorated()
        lines = stack(run.events(), "aten::cos")
    assert lines[0].endswith(": decorated")
    assert not any("otel_recfn/ranges" in line for line in lines)


def test_an_operator_that_torchscript_calls_carries_the_stack_of_the_script_innermost_first() -> None:
    def leaf(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x)

    def branch(x: torch.Tensor) -> torch.Tensor:
        return leaf(x) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        script = torch.jit.script(branch)
    with observed(Extra.STACK) as run:
        script(torch.ones(2))
        lines = stack(run.events(), "aten::cos")
    start = leaf.__code__.co_firstlineno
    assert lines == [f"{__file__}({start + 1}): leaf", f"{__file__}({start + 4}): branch"]


def test_backward_functions_carry_none_and_nothing_does_when_nobody_asked() -> None:
    x = torch.ones(2, requires_grad=True)
    with observed(Extra.STACK) as run:
        x.cos().sum().backward()
        backward = [event for event in run.events() if event.scope == RecordScope.BACKWARD_FUNCTION]
        assert backward
        assert {event.stack for event in backward} == {""}
        run.start(Extra.SHAPES)
        outer()
        assert stack(run.events(), "aten::cos") == []
