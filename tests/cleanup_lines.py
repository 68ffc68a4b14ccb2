"""Which lines of a file clean up, so that a test can raise at all others."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def lines_that_clean_up(path: str) -> set[int]:
    """Lines of ``finally`` blocks, and of ``with``, which is traced once more when it is left.

    A tracer can raise before their first instruction, where no signal handler runs.
    """
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    cleaned = [node for node in ast.walk(tree) if isinstance(node, ast.Try) for node in node.finalbody]
    lines = {line for node in cleaned for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return lines | {node.lineno for node in ast.walk(tree) if isinstance(node, ast.With)}
