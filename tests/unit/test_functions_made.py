"""No function is made where rows go through or captures start and stop, nor is ``dict.setdefault`` called.

CPython 3.12 and 3.13 free the code of a function once too often where they find no memory for the function, and crash later.
"""

from __future__ import annotations

import ast
from enum import EnumMeta
from pathlib import Path

import pytest

import otel_recfn
from otel_recfn.model import events, scope

pytestmark = pytest.mark.one_python

SOURCES = Path(otel_recfn.__file__).parent
ON_THE_WAY = (
    "batches",
    "instrumentor.py",
    "profiling.py",
    "runtime/callback_entries.py",
    "runtime/callback_lists.py",
    "session/capture.py",
    "session/captures.py",
    "session/drain_thread.py",
    "session/draining.py",
    "session/losses.py",
    "session/session.py",
    "session/sources.py",
    "settings",
    "sinks",
    "sources/otel_context.py",
    "sources/range_spans.py",
    "sources/suppression.py",
    "support/wrapped_function.py",
    "support/fork_safe_lock.py",
    "support/json_text.py",
    "support/own_file.py",
    "support/own_thread.py",
    "support/timed_lock.py",
    "support/span_ids.py",
)
MADE = (ast.GeneratorExp, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)
ITERATES = (ast.For, ast.comprehension)
ENUMS = {name for module in (events, scope) for name, value in vars(module).items() if isinstance(value, EnumMeta)}
"""A generator is made for going over their members."""
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
        members = isinstance(child, ITERATES) and isinstance(child.iter, ast.Name) and child.iter.id in ENUMS
        if inside and (isinstance(child, MADE) or setdefault or members):
            line = child.iter.lineno if isinstance(child, ITERATES) else child.lineno
            found.append((line, ast.unparse(child)))
        found += made_in(child, inside=inside or isinstance(child, FUNCTIONS))
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_no_function_is_made_where_memory_may_be_missing(path: Path) -> None:
    assert made_in(ast.parse(path.read_text())) == []


def test_what_is_made_is_found() -> None:
    made = ("g = lambda: 1", "sum(x for x in d)", "d.setdefault(1, 2)", "def h(): pass", "[s for s in EventSource]")
    source = "\n    ".join(("def f(d):", *made))
    assert [line for line, _ in made_in(ast.parse(source))] == [2, 3, 4, 5, 6]
