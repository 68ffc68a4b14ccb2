"""In which exponential bucket a duration lies, as the SDK's mappings say it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from otel_recfn.sinks.metrics.buckets import SECOND_NS, PowerRule
from otel_recfn.sinks.metrics.sums import Numbers

NEAR = 1e-6
"""An index this near to a whole number is worked out again: numpy's logarithm may differ in the last bit."""

SHORT_NS = 1 << 16
"""Durations below it, which most operators have, are looked up in a table."""


def bucket_indices(ns: Numbers, max_scale: int, factor: float) -> Numbers:
    """The buckets of durations above 0 at a scale, as the SDK's mappings have them.

    Exact powers of two belong to the bucket below.
    """
    values = ns / SECOND_NS
    mantissa, exponent = np.frexp(values)
    exponent = exponent.astype(np.int64) - 1
    is_power = mantissa == 0.5
    if max_scale <= 0:
        coarse: Numbers = (exponent - is_power) >> -max_scale
        return coarse
    exact = np.log(values) * factor
    indices = np.floor(exact).astype(np.int64)
    for row in np.flatnonzero(np.abs(exact - np.rint(exact)) < NEAR * np.maximum(1.0, np.abs(exact) * 1e-6)).tolist():
        indices[row] = math.floor(math.log(values[row]) * factor)
    indices[is_power] = (exponent[is_power] << max_scale) - 1
    return indices


@lru_cache(8)
def rule_arguments(rule: PowerRule) -> tuple[int, float, object, int]:
    """What adding needs of a rule: its scale, factor, the bucket of each short duration, and how many buckets there may be."""
    indices = bucket_indices(np.arange(1, SHORT_NS, dtype=np.int64), rule.max_scale, rule.factor)
    return rule.max_scale, rule.factor, np.concatenate(([0], indices)).astype(np.int32), rule.max_size
