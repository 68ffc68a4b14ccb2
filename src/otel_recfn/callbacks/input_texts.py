"""Inputs of a range as texts for its columns (their format: ``model/columns.py``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from numbers import Number
from typing import Any


def input_texts(inputs: Sequence[Any]) -> tuple[str, str]:
    """Texts of the shapes and dtypes of inputs that have both; both empty if an input raises."""
    try:
        described = [_describe(each) for each in inputs]
    except Exception:  # a lazy or exotic tensor of the program's may refuse
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
