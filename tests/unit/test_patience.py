"""Tests wait as long as a slow and busy machine may need: where something has to happen, nobody names seconds of his own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_python

TESTS = Path(__file__).parents[1]
WAITING = {"join", "wait", "result", "communicate", "wait_for_end"}
POLLING_S = 0.1
"""Who looks again and again may look after so long."""


def seconds(call: ast.Call) -> Iterator[ast.expr]:
    """How long a call waits."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in WAITING:
        yield from call.args[:1]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "timeout")


def own_numbers(source: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    constants = [each for call in calls for each in seconds(call) if isinstance(each, ast.Constant)]
    return [
        f"{each.value} in line {each.lineno}"
        for each in constants
        if isinstance(each.value, (int, float)) and each.value > POLLING_S
    ]


def test_whoever_waits_has_patience() -> None:
    found = {path.name: own_numbers(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}


def test_a_number_is_found() -> None:
    assert own_numbers("thread.join(10)\nevent.wait(0.01)\nrun(timeout=PATIENCE_S)\nrun(timeout=60)") == [
        "10 in line 1",
        "60 in line 4",
    ]
