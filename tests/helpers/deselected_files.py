"""Files of which ``-m "not ..."`` leaves no test: they need not be read, which takes as long as
many tests.
"""

from __future__ import annotations

import re
from pathlib import Path

MARKS = re.compile(r"^pytestmark = .*", re.MULTILINE)
NAME = re.compile(r"pytest\.mark\.(\w+)")
WITHOUT = re.compile(r"not \w+( and not \w+)*")


def is_left_out(path: Path, expression: str) -> bool:
    """Whether marks that all tests of a file have are among those of an expression like `not a
    and not b`.
    """
    if path.suffix != ".py" or not WITHOUT.fullmatch(expression):
        return False
    marks = MARKS.search(path.read_text(encoding="utf-8"))
    return marks is not None and not {*NAME.findall(marks[0])}.isdisjoint(
        expression.replace(" and", "").split(" ")
    )
