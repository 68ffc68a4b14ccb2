"""No function is made where rows go through, nor is ``dict.setdefault`` called.

CPython 3.13 crashes where it finds no memory for either.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import otel_recfn

SOURCES = Path(otel_recfn.__file__).parent
ON_THE_WAY = (
    "batches",
    "recording/python/batch.py",
    "recording/python/drain.py",
    "recording/python/log.py",
    "recording/python/pairing.py",
    "session/capture.py",
    "session/captures.py",
    "session/session.py",
    "session/sources.py",
    "sinks",
    "support/fork_safe_lock.py",
    "support/json_text.py",
    "support/own_file.py",
    "support/own_thread.py",
    "support/span_ids.py",
)
MADE = (ast.GeneratorExp, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def files() -> list[Path]:
    found: list[Path] = []
    for name in ON_THE_WAY:
        found += [SOURCES / name] if name.endswith(".py") else (SOURCES / name).rglob("*.py")
    return sorted(found)


def made_in(node: ast.AST, *, inside: bool = False) -> list[tuple[int, str]]:
    """What is made in functions: line and code."""
    found = []
    for child in ast.iter_child_nodes(node):
        setdefault = isinstance(child, ast.Attribute) and child.attr == "setdefault"
        if inside and (isinstance(child, MADE) or setdefault):
            found.append((child.lineno, ast.unparse(child)))
        found += made_in(child, inside=inside or isinstance(child, FUNCTIONS))
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_no_function_is_made_where_rows_go_through(path: Path) -> None:
    assert made_in(ast.parse(path.read_text())) == []


def test_what_is_made_is_found() -> None:
    source = "def f(d):\n    g = lambda: 1\n    sum(x for x in d)\n    d.setdefault(1, 2)\n    def h(): pass\n"
    assert [line for line, _ in made_in(ast.parse(source))] == [2, 3, 4, 5]
