"""The doctor's findings as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from otel_recfn.cli.check import Check, works

MARKS = {True: "ok", False: "no", None: "--"}
NAME_WIDTH = 12


def as_text(checks: Sequence[Check]) -> str:
    """A line per check. What is wrong comes with what to do; ``--`` marks what is information alone."""
    lines = [_line(check) for check in checks]
    failed = [check.name for check in checks if check.ok is False]
    verdict = "PyTorch's operators can become spans here."
    if not works(checks):
        verdict = f"Not everything works here: {', '.join(failed)}."
    return "\n".join([*lines, "", verdict])


def as_json(checks: Sequence[Check]) -> str:
    """A list of objects with ``name``, ``ok`` (true, false, or null where it is for information) and ``text``."""
    return json.dumps([asdict(check) for check in checks], indent=2)


def _line(check: Check) -> str:
    head = f"{MARKS[check.ok]}  {check.name:<{NAME_WIDTH}}"
    return textwrap.indent(check.text, " " * len(head)).replace(" " * len(head), head, 1)
