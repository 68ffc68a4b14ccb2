"""Which operators are wrapped, and what is recorded of their calls: PyTorch's rules as data (source: ``gen_trace_type.py``).

A tracer records what a program does, with operators that write in place and into ``out``; or, with ``force_outplace``, the same
with operators that only return their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from otel_recfn.codegen.schemas import Operator

OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""The four in which tensor options are recorded."""
UNTRACEABLE_TYPES = frozenset({"Storage", "Type", "ConstQuantizerPtr"})
"""Types of arguments with which an operator is wrapped and not recorded."""
FACTORY = "factory"
"""The ``category_override`` that says what ``Rules.factories`` does."""


@dataclass(frozen=True)
class Rules:
    """What holds for a namespace's operators. Names are bases of operator names, but where it says otherwise."""

    manual: frozenset[str] = frozenset()
    """C++ names of operators whose kernels or tracing PyTorch writes by hand: they are not wrapped."""
    never_recorded: frozenset[str] = frozenset()
    """Operators that are wrapped and not recorded, because those are recorded of which they consist."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """By operator name without overload: the name that is recorded instead."""
    options_added: frozenset[str] = frozenset()
    """Operators whose variants that write, when recorded as ones that don't, get default options and a memory format."""
    factories: frozenset[str] = frozenset()
    """Operators whose out variants are recorded with the options of the result, though they have tensors as inputs."""


ATEN = Rules(
    manual=frozenset(
        {"_backward", "_version", "data", "is_leaf", "options", "output_nr", "requires_grad_", "retain_grad", "set_data"}
        | {"_fw_primal", "_make_dual", "copy_", "detach", "detach_", "resize_", "resize_as_"}
    ),
    never_recorded=frozenset(
        {"_coalesced", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
        | {"convolution", "gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"}
    ),
    renamed=MappingProxyType({"fill": "full_like", "zero": "zeros_like"}),
    options_added=frozenset({"fill", "zero"}),
    factories=frozenset({"normal"}),
)
"""Of PyTorch's own operators."""

OTHERS = Rules()
"""Of all other namespaces: whatever a library calls its operators, they are wrapped, and recorded where they return tensors."""


def rules_of(namespace: str) -> Rules:
    """The rules that hold for its operators."""
    return ATEN if namespace == "aten" else OTHERS


# --- what holds for one operator


@dataclass(frozen=True)
class Input:
    """An input of the recorded node."""

    name: str
    """Its name in the node."""
    value: str
    """An argument's name; or ``out.dtype``, an option of an argument; or ``=None``, a constant in Python."""


@dataclass(frozen=True)
class Recorded:
    """The node that is recorded, in one mode."""

    kind: str
    """The operator's name in the node, without namespace."""
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    """Names of results, or of arguments that are results."""


@dataclass(frozen=True)
class Guard:
    """What is checked with ``force_outplace``: that nobody else uses the data which the operator writes."""

    operator: str
    """What the warning calls the operator."""
    argument: str


@dataclass(frozen=True)
class Facts:
    """All that is recorded of a wrapped operator's calls; nothing where its wrapper calls it with tracing as it is."""

    in_place: Recorded | None = None
    out_of_place: Recorded | None = None
    guard: Guard | None = None


ADDED_OPTIONS = (
    Input("options", "=None"),
    Input("options", "=0"),
    Input("options", '="cpu"'),
    Input("options", "=False"),
    Input("memory_format", "=1"),
)
"""The inputs that ``Rules.options_added`` asks for: options that nobody gave, in PyTorch's numbers. They are no dtype, the
strided layout, the CPU, memory that is not pinned, and the argument's memory format."""


def facts_of(operator: Operator, rules: Rules) -> Facts | None:
    """The facts about an operator; None where it has no wrapper."""
    if operator.cpp_name in rules.manual:
        return None
    if not _is_traced(operator, rules):
        return Facts()
    inputs = tuple(Input(each.name, each.name) for each in operator.arguments)
    results = tuple(operator.return_names())
    written = operator.out_arguments
    return Facts(
        Recorded(_recorded_name(operator, rules, operator.cpp_name), inputs, results),
        Recorded(
            _recorded_name(operator, rules, operator.name.base),
            _out_of_place_inputs(operator, rules),
            tuple(each.name for each in written) or results,
        ),
        Guard(operator.cpp_name, written[0].name if written else "self") if _writes(operator) else None,
    )


def _is_traced(operator: Operator, rules: Rules) -> bool:
    return (
        all(each.type.text not in UNTRACEABLE_TYPES for each in operator.arguments)
        and any(each.type.base == "Tensor" for each in operator.returns)
        and operator.name.base not in rules.never_recorded
    )


def _recorded_name(operator: Operator, rules: Rules, otherwise: str) -> str:
    """What the node is called: as the operator where that is called the same in both modes."""
    has_one_name = operator.kind in ("functional", "out") or operator.name.is_dunder
    name = operator.name.full if has_one_name else otherwise
    return rules.renamed.get(name, name)


def _out_of_place_inputs(operator: Operator, rules: Rules) -> tuple[Input, ...]:
    """The arguments but for those that take results; in their place what a factory needs to make them."""
    inputs = [Input(each.name, each.name) for each in operator.in_arguments]
    if operator.out_arguments and _is_factory(operator, rules):
        out = operator.out_arguments[0].name
        inputs += [Input("out", f"{out}.{option}") for option in OPTIONS]
    if operator.name.base in rules.options_added and _writes(operator):
        inputs += ADDED_OPTIONS
    return tuple(inputs)


def _is_factory(operator: Operator, rules: Rules) -> bool:
    returns_tensors = any(each.type.base == "Tensor" for each in operator.returns)
    takes_tensors = any(each.type.base == "Tensor" for each in operator.in_arguments)
    return operator.category == FACTORY or operator.name.base in rules.factories or (returns_tensors and not takes_tensors)


def _writes(operator: Operator) -> bool:
    return operator.kind in ("inplace", "out") and not operator.name.is_dunder
