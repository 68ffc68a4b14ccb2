"""How many ways are tried: all that a test asks for on one CPython, a fifth on the others (``--hypothesis-profile brief``)."""

from __future__ import annotations

from hypothesis import settings

FULL, BRIEF = 100, 20
"""Examples of a property that doesn't say how many; the first is hypothesis's own number."""


def examples(full: int) -> settings:
    """So many examples of a property, in full."""
    return settings(max_examples=max(1, full * settings.default.max_examples // FULL))


def one_in() -> int:
    """Of so many places one is tried."""
    return max(1, FULL // settings.default.max_examples)
