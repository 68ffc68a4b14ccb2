"""One finding of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What was examined and what came out."""

    name: str
    ok: bool | None
    """None: for information, neither good nor bad."""
    text: str
    """The fact; where it is bad, then the way out."""


def works(checks: Sequence[Check]) -> bool:
    """Whether nothing stands in the way of the main job."""
    return all(check.ok is not False for check in checks)
