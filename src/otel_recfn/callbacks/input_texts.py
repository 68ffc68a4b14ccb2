"""Inputs of a range as texts for its columns (their format: ``model/columns.py``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from numbers import Number
from typing import Any

from otel_recfn.model.events import INT64

MOST_NUMBERS = 30
"""The numbers of a list that are shown; torch.profiler leaves out longer lists, too."""


def input_texts(inputs: Sequence[Any]) -> tuple[str, str, str]:
    """Texts of the shapes and dtypes of inputs that have both, and of numbers; all empty if an input raises."""
    try:
        described = [_describe(each) for each in inputs]
        concrete = [_concrete(each) for each in inputs]
    except Exception:  # a lazy or exotic tensor of the program's may refuse
        return "", "", ""
    shapes, dtypes = [shape for shape, _ in described], [dtype for _, dtype in described]
    return _compact(shapes), _compact(dtypes), _compact(concrete)


def _describe(value: Any) -> tuple[list[Any], Any]:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [int(size) for size in value.shape], str(value.dtype).removeprefix("torch.")
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        described = [_describe(each) for each in value]
        return [shape for shape, _ in described], [dtype for _, dtype in described]
    return [], "Scalar" if isinstance(value, Number) else ""


def _concrete(value: Any) -> str:
    """A number or a list of numbers as PyTorch prints it; else an empty text."""
    if type(value) not in (list, tuple):
        return _number(value)
    numbers = [_number(each) for each in value[:MOST_NUMBERS]]
    return f"[{', '.join(numbers)}]" if len(value) <= MOST_NUMBERS and all(numbers) else ""


def _number(value: Any) -> str:
    if type(value) is bool or (type(value) is int and value in INT64):
        return str(value)
    if type(value) is complex:
        return f"{_real(value.real)}{'+' if value.imag >= 0 else '-'}{_real(abs(value.imag))}j"
    return _real(value) if type(value) is float else ""


def _real(value: float) -> str:
    """A whole number that 64 bits hold ends with a point."""
    return f"{int(value)}." if value.is_integer() and int(value) in INT64 else f"{value:.17g}"


def _compact(value: list[Any] | dict[str, str]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
