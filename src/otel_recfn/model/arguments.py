"""Checks arguments where they are given: a value that its column can't hold would make the drain fail for all rows."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from otel_recfn.model.errors import SettingError

INT64 = -(1 << 63), (1 << 63) - 1
UINT32 = 0, (1 << 32) - 1
UINT64 = 0, (1 << 64) - 1


def whole_number(value: SupportsIndex, name: str, bounds: tuple[int, int]) -> int:
    """``value`` as an int.

    Raises:
        SettingError: no whole number, or not within the bounds, which are allowed themselves.
    """
    low, high = bounds
    try:
        number = index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise SettingError(f"{name}={value!r} is not allowed; allowed: a whole number from {low} to {high}")
    return number
