# Written by otel-recfn codegen, which overwrites changes:
#     otel-recfn codegen --schema operators.yaml --dispatch array_operators.kernels \
#         --shards 1 --out ...
# fmt: off
# ruff: noqa
# mypy: disable-error-code="comparison-overlap, no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_recfn.tracing.wrappers import Constant, Library, Option, Recorded, Watched, torch_library

_LIB_arrays = Library("arrays", "array_operators.kernels")

_OP_zeros = _LIB_arrays.operator(
    "zeros",
    "",
    {"size": "int[]"},
    ("Tensor",),
    Recorded("zeros"),
)


def zeros(size: Sequence[int]) -> Any:
    """arrays::zeros(int[] size) -> Tensor"""
    if not Watched.now:
        return _OP_zeros.target(size)
    return _OP_zeros.observed((size,), {})


_OP_add = _LIB_arrays.operator(
    "add",
    "",
    {"self": "Tensor", "other": "Tensor", "alpha": "Scalar"},
    ("Tensor",),
    Recorded("add"),
)


def add(self: Any, other: Any, *, alpha: complex = 1) -> Any:
    """arrays::add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    if not Watched.now:
        return _OP_add.target(self, other, alpha=alpha)
    return _OP_add.observed((self, other), {"alpha": alpha})


_OP_mul_ = _LIB_arrays.operator(
    "mul_",
    "",
    {"self": "Tensor", "other": "Scalar"},
    ("Tensor",),
    Recorded("mul_", outputs=("self",), out_of_place=Recorded("mul"), guarded="self"),
)


def mul_(self: Any, other: complex) -> Any:
    """arrays::mul_(Tensor(a!) self, Scalar other) -> Tensor(a!)"""
    if not Watched.now:
        return _OP_mul_.target(self, other)
    return _OP_mul_.observed((self, other), {})


_OP_matmul = _LIB_arrays.operator(
    "matmul",
    "",
    {"self": "Tensor", "other": "Tensor"},
    ("Tensor",),
    Recorded("matmul"),
)


def matmul(self: Any, other: Any) -> Any:
    """arrays::matmul(Tensor self, Tensor other) -> Tensor"""
    if not Watched.now:
        return _OP_matmul.target(self, other)
    return _OP_matmul.observed((self, other), {})


_OP_transpose = _LIB_arrays.operator(
    "transpose",
    "",
    {"self": "Tensor"},
    ("Tensor",),
    Recorded("transpose"),
)


def transpose(self: Any) -> Any:
    """arrays::transpose(Tensor(a) self) -> Tensor(a)"""
    if not Watched.now:
        return _OP_transpose.target(self)
    return _OP_transpose.observed((self,), {})


_OP_softmax = _LIB_arrays.operator(
    "softmax",
    "",
    {"self": "Tensor", "dim": "int"},
    ("Tensor",),
    Recorded("softmax"),
)


def softmax(self: Any, dim: int = -1) -> Any:
    """arrays::softmax(Tensor self, int dim=-1) -> Tensor"""
    if not Watched.now:
        return _OP_softmax.target(self, dim)
    return _OP_softmax.observed((self, dim), {})


_OP_sum = _LIB_arrays.operator(
    "sum",
    "",
    {"self": "Tensor", "dim": "int[]?", "keepdim": "bool"},
    ("Tensor",),
    Recorded("sum"),
)


def sum(self: Any, dim: Sequence[int] | None = None, *, keepdim: bool = False) -> Any:
    """arrays::sum(Tensor self, int[]? dim=None, *, bool keepdim=False) -> Tensor"""
    if not Watched.now:
        return _OP_sum.target(self, dim, keepdim=keepdim)
    return _OP_sum.observed((self, dim), {"keepdim": keepdim})


_OP_minmax = _LIB_arrays.operator(
    "minmax",
    "",
    {"self": "Tensor"},
    ("Tensor", "Tensor"),
    Recorded("minmax"),
)


def minmax(self: Any) -> tuple[Any, Any]:
    """arrays::minmax(Tensor self) -> (Tensor low, Tensor high)"""
    if not Watched.now:
        return _OP_minmax.target(self)
    return _OP_minmax.observed((self,), {})


_OP_split = _LIB_arrays.operator(
    "split",
    "",
    {"self": "Tensor", "parts": "int", "dim": "int"},
    ("Tensor[]",),
    Recorded("split"),
)


def split(self: Any, parts: int, dim: int = 0) -> list[Any]:
    """arrays::split(Tensor self, int parts, int dim=0) -> Tensor[]"""
    if not Watched.now:
        return _OP_split.target(self, parts, dim)
    return _OP_split.observed((self, parts, dim), {})


_OP_cat = _LIB_arrays.operator(
    "cat",
    "",
    {"tensors": "Tensor[]", "dim": "int"},
    ("Tensor",),
    Recorded("cat"),
)


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """arrays::cat(Tensor[] tensors, int dim=0) -> Tensor"""
    if not Watched.now:
        return _OP_cat.target(tensors, dim)
    return _OP_cat.observed((tensors, dim), {})
