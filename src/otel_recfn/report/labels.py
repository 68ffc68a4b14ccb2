"""The names and times of ranges as a report shows them."""

from __future__ import annotations

import re

LONGEST_NAME = 240
"""The maximum number of characters that are shown of a name."""
_NUMBERED = re.compile(r"(.+)#\d+")


def label_of(name: str) -> str:
    """The label of ranges with this name: names that differ only by a number at their end, as those
    of steps do, have one label.
    """
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered else name or "(no name)"


def shorten(name: str) -> str:
    """The beginning of a name, no longer than a page shows it."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def duration(ns: float) -> str:
    """A time as text, in the unit that fits."""
    for unit, name in ((1e9, "s"), (1e6, "ms")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns / 1000:.3g} us"


def call_count(count: int) -> str:
    """A number of calls as text."""
    return "1 call" if count == 1 else f"{count:,} calls"


def byte_count(count: int) -> str:
    """A number of bytes as text, in the unit that fits."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}"
    return f"{count:,} bytes"
