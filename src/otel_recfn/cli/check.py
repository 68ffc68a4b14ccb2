"""One finding of the doctor, and how it is told."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = {True: "ok", False: "no", None: "--"}
NAME_WIDTH = 12


@dataclass(frozen=True)
class Check:
    """What was examined and what came out."""

    name: str
    ok: bool | None
    """None: for information, neither good nor bad."""
    text: str
    """The fact; where it is bad, then the way out."""


def as_text(check: Check) -> str:
    """Its line. What is wrong comes with what to do; ``--`` marks what is information alone."""
    head = f"{MARKS[check.ok]}  {check.name:<{NAME_WIDTH}}"
    return textwrap.indent(check.text, " " * len(head)).replace(" " * len(head), head, 1)


def verdict(checks: Sequence[Check]) -> str:
    """What they come to."""
    failed = [check.name for check in checks if check.ok is False]
    return f"Not everything works here: {', '.join(failed)}." if failed else "PyTorch's operators can become spans here."
