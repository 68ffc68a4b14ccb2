"""Inputs as the texts of the columns ``shapes`` and ``dtypes`` (their format: ``model/columns.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from numbers import Number
from typing import Any


def input_texts(inputs: Iterable[Any]) -> tuple[str, str]:
    """Shapes and dtypes of what has both (tensors, arrays); both empty where an input raises when it is asked."""
    try:
        described = [_describe(each) for each in inputs]
    except Exception:  # the inputs are the program's: a lazy or exotic tensor may refuse
        return "", ""
    return _compact([shape for shape, _ in described]), _compact([dtype for _, dtype in described])


def _describe(value: Any) -> tuple[list[Any], Any]:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [int(size) for size in value.shape], str(value.dtype).removeprefix("torch.")
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        described = [_describe(each) for each in value]
        return [shape for shape, _ in described], [dtype for _, dtype in described]
    return [], "Scalar" if isinstance(value, Number) else ""


def _compact(value: list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
