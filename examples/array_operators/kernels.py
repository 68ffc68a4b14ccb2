"""The operators themselves: plain functions on arrays, found by their names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def zeros(size: Sequence[int]) -> Array:
    return np.zeros(tuple(size))


def add(self: Array, other: Array, *, alpha: float = 1) -> Array:
    return self + alpha * other


def mul_(self: Array, other: float) -> Array:
    self *= other
    return self


def matmul(self: Array, other: Array) -> Array:
    return self @ other


def transpose(self: Array) -> Array:
    return self.T


def softmax(self: Array, dim: int = -1) -> Array:
    powers = np.exp(self - self.max(axis=dim, keepdims=True))
    return powers / powers.sum(axis=dim, keepdims=True)


def sum(self: Array, dim: Sequence[int] | None = None, *, keepdim: bool = False) -> Array:
    return np.sum(self, axis=None if dim is None else tuple(dim), keepdims=keepdim)


def minmax(self: Array) -> tuple[Array, Array]:
    return self.min(axis=0), self.max(axis=0)


def split(self: Array, parts: int, dim: int = 0) -> list[Array]:
    return np.split(self, parts, axis=dim)


def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return np.concatenate(tensors, axis=dim)
