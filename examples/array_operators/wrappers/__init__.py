# Written by otel-recfn codegen, which overwrites changes:
#     otel-recfn codegen --schema operators.yaml --dispatch array_operators.kernels \
#         --shards 1 --out ...
# fmt: off
# ruff: noqa
# mypy: disable-error-code="comparison-overlap, no-any-return"
# A wrapper for each operator.

from .wrappers_0 import (
    add,
    cat,
    matmul,
    minmax,
    mul_,
    softmax,
    split,
    sum,
    transpose,
    zeros,
)

__all__ = [
    "add",
    "cat",
    "matmul",
    "minmax",
    "mul_",
    "softmax",
    "split",
    "sum",
    "transpose",
    "zeros",
]
