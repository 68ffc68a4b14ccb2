"""The tree that the examples print holds what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

EXAMPLES = Path(__file__).parents[2] / "examples"
STEP = trace.SpanContext(1, 1, is_remote=False)


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return __import__("tree")


def below(parent: trace.SpanContext, span_id: int, name: str, start: int, length: int) -> ReadableSpan:
    context = trace.SpanContext(1, span_id, is_remote=False)
    return ReadableSpan(name, context, parent, start_time=start, end_time=start + length)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()[:-2]) for line in capsys.readouterr().out.splitlines()]


def test_siblings_that_look_alike_are_one_line(tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root = ReadableSpan("step", STEP, start_time=0, end_time=1000)
    layers = [below(STEP, 3 + number, f"nn.Module: Linear_{number}", 100 + number, 10) for number in range(2)]
    inside = [below(layer.context, 5 + number, "aten::mm", 101 + number, 5) for number, layer in enumerate(layers)]
    spans = [root, below(STEP, 2, "aten::add", 1, 10), *layers, *inside]
    tree.print_tree(root, spans, least_share=0)
    assert printed(capsys) == ["step", "├─ aten::add", "└─ nn.Module: Linear 2 x", "└─ aten::mm 2 x"]
    assert tree.descendants(layers[1], spans) == inside[1:]


def test_what_is_short_is_summed_up(tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root = ReadableSpan("step", STEP, start_time=0, end_time=1000)
    lengths = {"a": 90, "b": 300, "c": 80, "d": 3}
    spans = [below(STEP, 2 + place, name, place, length) for place, (name, length) in enumerate(lengths.items())]
    tree.print_tree(root, spans, least_share=0.1)
    assert printed(capsys) == ["step", "├─ b", "└─ … shorter ones 3 x"]
    tree.print_tree(root, spans[-1:], least_share=0.1)
    assert printed(capsys) == ["step"]
