"""What we say of each operator of the installed torch is what PyTorch's own generator does with
it.
"""

from __future__ import annotations

import pytest
from trace_type_text import VALUES, Kernel, kernels, packaged_schemas, written_by_torchgen

from otel_recfn.codegen.rules import ATEN, Facts, operator_facts
from otel_recfn.codegen.schemas import Operator, read_operators

pytestmark = [pytest.mark.torch, pytest.mark.one_python]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    pytest.importorskip("torchgen")
    return kernels(written_by_torchgen(tmp_path_factory.mktemp("torchgen")))


@pytest.fixture(scope="module")
def ours() -> dict[str, Kernel | None]:
    operators = {
        str(each.name).removeprefix("aten::"): each for each in read_operators(packaged_schemas())
    }
    return {name: as_kernel(each, operator_facts(each, ATEN)) for name, each in operators.items()}


def as_kernel(operator: Operator, facts: Facts | None) -> Kernel | None:
    """Our facts, as those of a kernel of PyTorch's; None where there is no wrapper."""
    if facts is None or facts.in_place is None or facts.out_of_place is None:
        return None if facts is None else Kernel(False)
    modes = facts.out_of_place, facts.in_place
    return Kernel(
        True,
        (modes[0].kind, modes[1].kind),
        (list(modes[0].inputs), list(modes[1].inputs)),
        (list(operator.written), list(operator.written)),
        (operator.cpp_name, facts.guarded) if facts.guarded else ("", ""),
    )


def in_our_words(kernel: Kernel) -> Kernel:
    """A kernel of PyTorch's, with inputs as we write them, and without names of results that are
    no arguments.
    """
    first, second = (
        [VALUES.get(value, '"{value}"').format(name=name, value=value) for name, value in mode]
        for mode in kernel.inputs
    )
    arguments = {value for _, value in kernel.inputs[1]}
    written = [mode if {*mode} <= arguments else [] for mode in kernel.outputs]
    return kernel._replace(inputs=(first, second), outputs=(written[0], written[1]))


def test_the_same_operators_are_wrapped(
    theirs: dict[str, Kernel], ours: dict[str, Kernel | None]
) -> None:
    wrapped = {name for name, facts in ours.items() if facts is not None}
    assert wrapped == set(theirs)
    assert len(ours) > len(wrapped) > 2500  # some are left out


def test_the_same_is_recorded_of_each(
    theirs: dict[str, Kernel], ours: dict[str, Kernel | None]
) -> None:
    differing = {
        name: (ours[name], in_our_words(kernel))
        for name, kernel in theirs.items()
        if ours[name] != in_our_words(kernel)
    }
    assert differing == {}


def test_the_comparison_covers_what_differs_between_operators(theirs: dict[str, Kernel]) -> None:
    """Were the text of PyTorch's generator read wrongly, some of these would be missing."""
    traced = [kernel for kernel in theirs.values() if kernel.traced]
    assert 0 < len(traced) < len(theirs)
    assert sum(kernel.guard[0].endswith("_out") for kernel in traced) > 500
    assert sum(kernel.names[0] != kernel.names[1] for kernel in traced) > 100
    assert sum(kernel.inputs[0] != kernel.inputs[1] for kernel in traced) > 500
    assert sum(len(kernel.outputs[0]) > 1 for kernel in traced) > 100
    assert {"zeros_like", "full_like"} <= {kernel.names[0] for kernel in traced}
