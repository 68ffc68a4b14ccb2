"""The lines of Python that ranges come from."""

from __future__ import annotations

from collections import Counter

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.ranges import RecordedRanges

MAX_EXAMINED = 1000
"""The maximum number of ranges whose lines are looked up, those with the largest amounts."""
COLUMNS = ("call_site", "stack", "code")
"""The columns that have lines of Python, the one that says most first."""


def main_line(recorded: RecordedRanges, ranges: Indices, amounts: Amounts) -> str:
    """The line of Python, ``file(line): function``, for which the amounts of these ranges add up
    to most; empty if none is known.

    The line of a range is its innermost one outside of PyTorch or, if it has none, that of the
    range around it.
    """
    largest = np.argsort(-amounts, kind="stable")[:MAX_EXAMINED]
    sums: Counter[str] = Counter()
    known = {-1: ""}
    for position, amount in zip(ranges[largest].tolist(), amounts[largest].tolist(), strict=True):
        sums[_line(recorded, position, known)] += amount
    sums.pop("", None)
    return max(sums, key=lambda line: sums[line], default="")


def _line(recorded: RecordedRanges, position: int, known: dict[int, str]) -> str:
    """The line of a range. ``known`` has the lines of ranges that were looked up before."""
    passed = []
    while position not in known:
        passed.append(position)
        line = _own_line(recorded, position)
        if line:
            known[position] = line
        else:
            position = int(recorded.parent[position])
    known |= dict.fromkeys(passed, known[position])
    return known[position]


def _own_line(recorded: RecordedRanges, position: int) -> str:
    texts = [recorded.text_in_column(column, position) for column in COLUMNS]
    lines = [line for text in texts for line in text.splitlines()]
    return next((line for line in lines if "/torch/" not in line), "")
