"""No lock is taken by ``with``: where there is no memory for the tuple that it makes at its end, the lock would stay taken."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import otel_recfn

pytestmark = pytest.mark.one_python

SOURCES = Path(otel_recfn.__file__).parent
NO_LOCKS = {"range_"}


def entered(source: str) -> list[str]:
    """What ``with`` enters that was there before, as a lock is: not what is made for it by a call, or cut out of memory."""
    items = [item.context_expr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With) for item in node.items]
    return [ast.unparse(item) for item in items if isinstance(item, ast.Name | ast.Attribute)]


def test_no_lock_is_taken_by_with() -> None:
    found = {(path.name, name) for path in SOURCES.rglob("*.py") for name in entered(path.read_text(encoding="utf-8"))}
    assert [(file, name) for file, name in found if name not in NO_LOCKS] == []


def test_what_is_entered_is_found() -> None:
    assert entered("with self._lock, open(path) as file, lock:\n    pass") == ["self._lock", "lock"]
