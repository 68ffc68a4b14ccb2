"""The stacks and FLOPs of operators: the FLOPs are those of torch.profiler in the same run."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from helpers.observed_operators import observed  # noqa: E402
from helpers.torch_programs import Training  # noqa: E402
from otel_recfn import record_function  # noqa: E402
from otel_recfn.model.batch import Event  # noqa: E402
from otel_recfn.model.events import Extra, RecordScope  # noqa: E402

pytestmark = pytest.mark.torch


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
def test_an_operator_that_python_calls_carries_the_python_stack_innermost_first(
    extras: Extra,
) -> None:
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
    assert lines[1].endswith(": test_frames_of_our_own_are_left_out")


def test_operators_called_by_torchscript_have_the_stack_of_the_script() -> None:
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


def counted(work: Callable[[], object], extras: Extra = Extra.FLOPS) -> list[Event]:
    """The operators that have FLOPs, after comparison with torch.profiler."""
    with (
        profile(activities=[ProfilerActivity.CPU], with_flops=True) as theirs,
        observed(extras) as run,
    ):
        work()
        ours = [event for event in run.events() if event.flops]
    expected = Counter((event.name, event.flops) for event in theirs.events() if event.flops)
    assert Counter((event.name, event.flops) for event in ours) == expected
    return ours


def conv(
    inputs: tuple[int, ...], channels: int, kernel: int | tuple[int, int], **options: object
) -> Callable[[], object]:
    layer = nn.Conv2d(inputs[1], channels, kernel, **options)
    data = torch.ones(inputs)
    return lambda: layer(data)


OPERATORS: dict[str, tuple[str, Callable[[], object]]] = {
    "mm": ("aten::mm", lambda: torch.ones(2, 3) @ torch.ones(3, 5)),
    "linear": ("aten::addmm", lambda: nn.Linear(3, 5)(torch.ones(2, 3))),
    "bmm": ("aten::bmm", lambda: torch.bmm(torch.ones(4, 2, 3), torch.ones(4, 3, 5))),
    "baddbmm": (
        "aten::baddbmm",
        lambda: torch.baddbmm(torch.ones(4, 2, 5), torch.ones(4, 2, 3), torch.ones(4, 3, 5)),
    ),
    "add": ("aten::add", lambda: torch.ones(2, 3, 4) + 1),
    "add, broadcast": ("aten::add", lambda: torch.ones(3) + torch.ones(2, 3)),
    "mul of a scalar tensor": ("aten::mul", lambda: torch.tensor(2.0) * 3),
    "conv2d": ("aten::conv2d", conv((2, 3, 9, 8), 4, 3)),
    "conv2d, padded": ("aten::conv2d", conv((2, 3, 9, 8), 4, 3, padding=(1, 2))),
    "conv2d, in strides": ("aten::conv2d", conv((2, 3, 9, 8), 4, (3, 2), stride=(2, 3))),
    "conv2d, dilated": ("aten::conv2d", conv((2, 3, 9, 8), 4, 3, dilation=(2, 1))),
    "conv2d, in groups": ("aten::conv2d", conv((2, 6, 9, 8), 4, 3, groups=2)),
    "conv2d, all of it": (
        "aten::conv2d",
        conv((2, 6, 19, 18), 9, 3, groups=3, stride=2, padding=1, dilation=3, bias=False),
    ),
}


@pytest.mark.parametrize(("name", "work"), OPERATORS.values(), ids=OPERATORS)
def test_an_operator_counts_as_torch_profiler_counts_it(
    name: str, work: Callable[[], object]
) -> None:
    assert name in {event.name for event in counted(work)}


def test_a_training_step_counts_as_torch_profiler_counts_it() -> None:
    training = Training()
    training.step()
    assert {"aten::addmm", "aten::mm", "aten::add"} <= {
        event.name for event in counted(training.step)
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "work",
    [
        conv((2, 3, 9, 8), 4, 3, padding="same"),
        lambda: torch.ones(0, 3) @ torch.ones(3, 2),
        lambda: torch.ones(2, 0) @ torch.ones(0, 2),
        lambda: torch.ones(2, 3).cos(),
        lambda: nn.Conv1d(3, 4, 2)(torch.ones(2, 3, 9)),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]) * 2,
    ],
)
def test_what_cannot_be_counted_is_not_counted(work: Callable[[], object]) -> None:
    counted(work)


def test_without_flops_asked_for_none_are_counted_and_without_shapes_none_are_recorded() -> None:
    with observed(Extra.SHAPES) as run:
        torch.ones(2, 3) @ torch.ones(3, 5)
        assert {
            (event.flops, event.shapes) for event in run.events() if event.name == "aten::mm"
        } == {(0, "[[2,3],[3,5]]")}
        run.start(Extra.FLOPS)
        torch.ones(2, 3) @ torch.ones(3, 5)
        assert {
            (event.flops, event.shapes) for event in run.events() if event.name == "aten::mm"
        } == {(60, "")}
