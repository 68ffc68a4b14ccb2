"""Wrappers as the generator writes them, for a few operators on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.tracing.wrappers import Constant, Library, Option, Recorded, Watched


class Kernels:
    """The operators."""

    @staticmethod
    def add(self: Any, other: Any, alpha: float = 1) -> Any:
        return self + alpha * other

    @staticmethod
    def add_(self: Any, other: Any) -> Any:
        self += other
        return self

    @staticmethod
    def split(self: Any, parts: int) -> list[Any]:
        return np.split(self, parts)

    @staticmethod
    def minmax(self: Any) -> tuple[Any, Any]:
        return self.min(), self.max()

    @staticmethod
    def stack(tensors: Any) -> Any:
        return np.stack(tensors)

    @staticmethod
    def fail(self: Any) -> Any:
        raise ValueError("no such array")

    @staticmethod
    def twice(self: Any) -> Any:
        return add(add(self, self, alpha=0), self)

    @staticmethod
    def fill_(self: Any, value: float) -> Any:
        self[...] = value
        return self

    @staticmethod
    def ones(n: int, out: Any = None) -> Any:
        out[...] = np.ones(n)
        return out


_LIB = Library("arrays", Kernels)
_OP_add = _LIB.operator(
    "add",
    "",
    {"self": "Tensor", "other": "Tensor", "alpha": "Scalar"},
    ("Tensor",),
    Recorded("add"),
)
_OP_add_ = _LIB.operator(
    "add_",
    "",
    {"self": "Tensor", "other": "Tensor"},
    ("Tensor",),
    Recorded("add_", outputs=("self",), out_of_place=Recorded("add"), guarded="self"),
)
_OP_split = _LIB.operator(
    "split", "", {"self": "Tensor", "parts": "int"}, ("Tensor[]",), Recorded("split")
)
_OP_minmax = _LIB.operator(
    "minmax", "", {"self": "Tensor"}, ("Tensor", "Tensor"), Recorded("minmax")
)
_OP_stack = _LIB.operator("stack", "", {"tensors": "Tensor[]"}, ("Tensor",), Recorded("stack"))
_OP_fail = _LIB.operator("fail", "", {"self": "Tensor"}, ("Tensor",), Recorded("fail"))
_OP_twice = _LIB.operator("twice", "", {"self": "Tensor"}, ("Tensor",), Recorded("twice"))
_OP_composite = _LIB.operator("twice", "", {"self": "Tensor"}, ("Tensor",))
_OP_missing = _LIB.operator("missing", "", {"self": "Tensor"}, ("Tensor",), Recorded("missing"))
_OP_fill_ = _LIB.operator(
    "fill_",
    "",
    {"self": "Tensor", "value": "Scalar"},
    ("Tensor",),
    Recorded(
        "fill_",
        outputs=("self",),
        out_of_place=Recorded("full_like", inputs=("self", "value", Constant("options", None))),
        guarded="self",
    ),
)
_OP_ones_out = _LIB.operator(
    "ones",
    "out",
    {"n": "int[1]", "out": "Tensor"},
    ("Tensor",),
    Recorded(
        "ones",
        outputs=("out",),
        out_of_place=Recorded("ones", inputs=("n", Option("out", "out", "dtype"))),
    ),
)


def add(self: Any, other: Any, *, alpha: float = 1) -> Any:
    if not Watched.now:
        return _OP_add.target(self, other, alpha=alpha)
    return _OP_add.observed((self, other), {"alpha": alpha})


def _of(operator: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not Watched.now:
            return operator.target(*args, **kwargs)
        return operator.observed(args, kwargs)

    return wrapper


add_, split, minmax, stack, fail = map(_of, (_OP_add_, _OP_split, _OP_minmax, _OP_stack, _OP_fail))
twice, composite, missing, fill_, ones_out = map(
    _of, (_OP_twice, _OP_composite, _OP_missing, _OP_fill_, _OP_ones_out)
)
