"""How many ways are tried: all that a test asks for on one CPython, a fifth on the others
(``--hypothesis-profile brief``).
"""

from __future__ import annotations

import os

from hypothesis import settings

SOAK = int(os.environ.get("OTEL_RECFN_SOAK", "1"))
"""Tests that look for rare moments run so many times as long: ``OTEL_RECFN_SOAK=10``."""

FULL, BRIEF = 100, 20
"""Examples of a property that doesn't say how many; the first is hypothesis's own number."""


def examples(full: int) -> settings:
    """So many examples of a property, in full."""
    return settings(max_examples=max(1, full * settings.default.max_examples // FULL))


def one_in() -> int:
    """Of so many places one is tried."""
    return max(1, FULL // settings.default.max_examples)
