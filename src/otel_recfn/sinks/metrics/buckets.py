"""Which buckets durations are counted in: those that the histograms behind an instrument have, each once.

Durations are whole nanoseconds here, and seconds, as floating point numbers, in the histograms; both agree on the bucket of
every duration, also of one that is as long as a bucket's bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import ldexp, log, nextafter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SECOND_NS = 1e9
LONGEST_NS = (1 << 63) - 1


class PowerRule(NamedTuple):
    """Of an exponential histogram."""

    max_size: int
    """How many buckets there are at most."""
    max_scale: int
    """The finest scale, at which each begins."""

    @property
    def places(self) -> int:
        """The least power of two that is no less than ``max_size``."""
        return 1 << (self.max_size - 1).bit_length()

    @property
    def factor(self) -> float:
        """What the logarithm of a value is multiplied by to get its bucket at the finest scale, where that is above 0."""
        return ldexp(1 / log(2), self.max_scale)


class Layout:
    """The buckets.

    Args:
        bounds: of each explicit histogram, its bounds in seconds, ascending.
        powers: of each exponential one, its rule.
        asked: whether anything takes durations, be it without buckets.
    """

    def __init__(self, bounds: Iterable[tuple[float, ...]], powers: Iterable[PowerRule], asked: bool = True) -> None:
        self.bounds = list(dict.fromkeys(bounds))
        self.powers = list(dict.fromkeys(powers))
        self.asked = asked

    @cached_property
    def least_ns(self) -> list[NDArray[np.int64]]:
        """Of each list of bounds, the shortest duration that lies above each of them."""
        return [np.array([least_above(bound) for bound in bounds], np.int64) for bounds in self.bounds]


def least_above(bound: float) -> int:
    """The least whole number of nanoseconds that is more than so many seconds, both as floating point numbers."""
    if bound < 0:
        return 0
    near = int(min(bound * SECOND_NS, float(LONGEST_NS)))
    low, high = max(0, near - _slack(near)), min(near + _slack(near), LONGEST_NS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle / SECOND_NS > bound else (middle + 1, high)
    return low


def _slack(near: int) -> int:
    """How far off the product of two floating point numbers, and a division, may be."""
    return 2 + 4 * int(nextafter(float(near), float("inf")) - float(near))
