"""The operators that are wrapped and what graphs record of them: PyTorch's rules as data (source:
``gen_trace_type.py``).

A tracer records operators as they are called, also those that write; with ``force_outplace``, all
as returning results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from otel_recfn.codegen.schemas import Operator, base_type

OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""The four arguments that make up the tensor options."""
UNTRACEABLE_TYPES = frozenset({"Storage", "Type", "ConstQuantizerPtr"})
"""Types of arguments whose operators are wrapped but not recorded."""
FACTORY = "factory"
"""The ``category_override`` of operators that ``Rules.factories`` is about."""


@dataclass(frozen=True)
class Rules:
    """The rules for a namespace's operators, named by the bases of their names unless said
    otherwise.
    """

    manual: frozenset[str] = frozenset()
    """C++ names of operators that get no wrapper, because PyTorch writes their kernels or
    tracing by hand.
    """
    never_recorded: frozenset[str] = frozenset()
    """Operators that are wrapped but not recorded, because the operators that they consist of
    are.
    """
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The recorded name, by operator name without overload."""
    options_added: frozenset[str] = frozenset()
    """Operators whose writing variants get default options and a memory format when recorded out
    of place.
    """
    factories: frozenset[str] = frozenset()
    """Operators whose out variants are recorded with the options of the result, though they have
    tensors as inputs.
    """


ATEN = Rules(
    manual=frozenset(
        {
            "_backward",
            "_version",
            "data",
            "is_leaf",
            "options",
            "output_nr",
            "requires_grad_",
            "retain_grad",
            "set_data",
        }
        | {"_fw_primal", "_make_dual", "copy_", "detach", "detach_", "resize_", "resize_as_"}
    ),
    never_recorded=frozenset(
        {
            "_coalesced",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
        }
        | {"convolution", "gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"}
    ),
    renamed=MappingProxyType({"fill": "full_like", "zero": "zeros_like"}),
    options_added=frozenset({"fill", "zero"}),
    factories=frozenset({"normal"}),
)
"""The rules for PyTorch's own operators."""

OTHERS = Rules()
"""The rules for other namespaces: every operator is wrapped, and recorded if it returns tensors."""


def namespace_rules(namespace: str) -> Rules:
    """The rules for a namespace's operators."""
    return ATEN if namespace == "aten" else OTHERS


# --- one operator


class Recorded(NamedTuple):
    """The node that is recorded in one mode."""

    kind: str
    """The operator's name in the node, without namespace."""
    inputs: tuple[str, ...]
    """The inputs as a written module has them: an argument's name in quotes, ``Option(...)`` or
    ``Constant(...)``.
    """


@dataclass(frozen=True)
class Facts:
    """The facts that a wrapper needs of its operator's recording; none if it isn't recorded."""

    in_place: Recorded | None = None
    out_of_place: Recorded | None = None
    guarded: str = ""
    """The argument that the operator writes, if ``force_outplace`` checks that nobody else uses
    its data.
    """


ADDED_OPTIONS = (
    'Constant("options", None)',
    'Constant("options", 0)',
    'Constant("options", "cpu")',
    'Constant("options", False)',
    'Constant("memory_format", 1)',
)
"""The inputs that ``Rules.options_added`` asks for: options that nobody gave, in PyTorch's numbers.

They are no dtype, the strided layout, the CPU, memory that is not pinned, and the argument's memory
format.
"""


def operator_facts(operator: Operator, rules: Rules) -> Facts | None:
    """The facts about an operator; None if it gets no wrapper."""
    if operator.cpp_name in rules.manual:
        return None
    if not _is_traced(operator, rules):
        return Facts()
    inputs = tuple(f'"{each.name}"' for each in operator.arguments)
    return Facts(
        Recorded(_recorded_name(operator, rules, operator.cpp_name), inputs),
        Recorded(
            _recorded_name(operator, rules, operator.name.base),
            _out_of_place_inputs(operator, rules),
        ),
        operator.written[0] if _writes(operator) else "",
    )


def _is_traced(operator: Operator, rules: Rules) -> bool:
    return (
        all(each.type not in UNTRACEABLE_TYPES for each in operator.arguments)
        and _has_tensor(operator.returns)
        and operator.name.base not in rules.never_recorded
    )


def _has_tensor(types: Iterable[str]) -> bool:
    return any(base_type(each) == "Tensor" for each in types)


def _recorded_name(operator: Operator, rules: Rules, otherwise: str) -> str:
    """The node's name: the operator's, if that is the same in both modes."""
    has_one_name = operator.kind in ("functional", "out") or operator.name.is_dunder
    name = operator.name.full if has_one_name else otherwise
    return rules.renamed.get(name, name)


def _out_of_place_inputs(operator: Operator, rules: Rules) -> tuple[str, ...]:
    """The arguments without those that take results; in their place the options that a factory
    needs.
    """
    inputs = [f'"{each.name}"' for each in operator.arguments if not each.is_out]
    if operator.out_arguments and _is_factory(operator, rules):
        inputs += [
            f'Option("out", "{operator.out_arguments[0]}", "{option}")' for option in OPTIONS
        ]
    if operator.name.base in rules.options_added and _writes(operator):
        inputs += ADDED_OPTIONS
    return tuple(inputs)


def _is_factory(operator: Operator, rules: Rules) -> bool:
    takes_tensors = _has_tensor(each.type for each in operator.arguments if not each.is_out)
    makes_tensors = _has_tensor(operator.returns) and not takes_tensors
    return operator.category == FACTORY or operator.name.base in rules.factories or makes_tensors


def _writes(operator: Operator) -> bool:
    return operator.kind in ("inplace", "out") and not operator.name.is_dunder
