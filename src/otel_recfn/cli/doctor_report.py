"""The doctor's findings as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from otel_recfn.cli.check import Check, works

MARKS = {True: "ok", False: "no", None: "--"}
NAME_WIDTH = 12


def as_text(check: Check) -> str:
    """Its line. What is wrong comes with what to do; ``--`` marks what is information alone."""
    head = f"{MARKS[check.ok]}  {check.name:<{NAME_WIDTH}}"
    return textwrap.indent(check.text, " " * len(head)).replace(" " * len(head), head, 1)


def verdict(checks: Sequence[Check]) -> str:
    """What they come to."""
    failed = [check.name for check in checks if check.ok is False]
    if works(checks):
        return "PyTorch's operators can become spans here."
    return f"Not everything works here: {', '.join(failed)}."


def as_json(checks: Sequence[Check]) -> str:
    """A list of objects with ``name``, ``ok`` (true, false, or null where it is for information) and ``text``."""
    return json.dumps([asdict(check) for check in checks], indent=2)
