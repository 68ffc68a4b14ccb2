"""Sums of 64 bits, as the native twin has them: past 292 years in nanoseconds they go on from the lowest number."""

from __future__ import annotations

_ALL, _HALF = 1 << 64, 1 << 63


def wrapped(number: int) -> int:
    """What is left of it in 64 bits, one of them the sign."""
    return (number + _HALF) % _ALL - _HALF
