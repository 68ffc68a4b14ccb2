"""A device that is written in Python: whatever runs on it has its backward in a thread of
autograd's own.

To be imported once a process. ``AVAILABLE`` says whether this torch can have one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration

try:
    backend_registration._setup_privateuseone_for_python_backend("abacus")
    _empty = torch._C._acc.create_empty_tensor
    AVAILABLE = True
except AttributeError:
    AVAILABLE = False


class OnAbacus(torch.Tensor):  # type: ignore[misc]
    """A tensor on the device, whose values are ``held`` on the CPU."""

    held: Any

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        made = _empty(held.size(), held.dtype)
        made.__class__ = OnAbacus
        return made

    def __init__(self, held: Any) -> None:
        self.held = held


def multiply(one: OnAbacus, other: OnAbacus) -> OnAbacus:
    return OnAbacus(one.held * other.held)


if AVAILABLE:
    torch.library.impl("aten::mul.Tensor", "privateuseone")(multiply)


class Copied(torch.autograd.Function):  # type: ignore[misc]
    """Its input, with a backward that calls ``in_backward``."""

    in_backward: Any = staticmethod(lambda: None)

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        return OnAbacus(x.held.clone())

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        Copied.in_backward()
        return OnAbacus(gradient.held * 1)


class Training:
    """A tensor on the device, and backward passes from it that begin with no operator."""

    def __init__(self) -> None:
        self.x = OnAbacus(torch.tensor([2.0, 3.0])).requires_grad_()
        self.result = Copied.apply(self.x * OnAbacus(torch.tensor([4.0, 5.0])))
        self.gradient = OnAbacus(torch.ones(2))

    def backward(self) -> None:
        torch.autograd.grad(self.result, self.x, self.gradient, retain_graph=True)
