"""Which operators are wrapped and traced, and as what: PyTorch's rules as data (source: ``gen_trace_type.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""The four in which tensor options are recorded."""


@dataclass(frozen=True)
class Rules:
    """What holds for a namespace's operators. Names are bases of operator names, but where it says otherwise."""

    manual_backend: frozenset[str] = frozenset()
    """C++ names of operators whose kernels PyTorch registers by hand: they are not wrapped."""
    manual_autograd_and_tracer: frozenset[str] = frozenset()
    """C++ names of operators whose tracing PyTorch writes by hand: they are not wrapped."""
    never_recorded: frozenset[str] = frozenset()
    """Operators that are wrapped and not recorded, because those are recorded of which they consist."""
    untraceable_types: frozenset[str] = frozenset({"Storage", "Type", "ConstQuantizerPtr"})
    """Types of arguments with which an operator is wrapped and not recorded."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """By operator name without overload: the name that is recorded instead."""
    options_added: frozenset[str] = frozenset()
    """Operators whose variants that write, when recorded as ones that don't, get default options and a memory format."""
    factories: frozenset[str] = frozenset()
    """Operators whose out variants are recorded with the options of the result, though they have tensors as inputs."""
    factory_category: str = "factory"
    """The ``category_override`` that says the same."""

    @property
    def manual(self) -> frozenset[str]:
        """C++ names of operators that are not wrapped."""
        return self.manual_backend | self.manual_autograd_and_tracer


ATEN = Rules(
    manual_backend=frozenset(
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
    ),
    manual_autograd_and_tracer=frozenset(
        {"_fw_primal", "_make_dual", "copy_", "detach", "detach_", "resize_", "resize_as_"},
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
            "convolution",
            "gru_cell",
            "lstm_cell",
            "rnn_relu_cell",
            "rnn_tanh_cell",
        }
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
