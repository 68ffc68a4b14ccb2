"""Shapes and dtypes as lists."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support import texts
from otel_recfn.support.texts import element_texts, flat_shapes

SHAPE = st.lists(st.integers(0, 1 << 40), max_size=4)


@given(st.lists(SHAPE | st.lists(SHAPE, min_size=1, max_size=3), max_size=5))
def test_shapes_are_read_as_they_were_written(shapes: list[list[object]]) -> None:
    text = json.dumps(shapes, separators=(",", ":"))
    assert [json.loads(element) for element in element_texts(text)] == shapes
    flat = [
        tuple(shape) if not any(isinstance(size, list) for size in shape) else ()
        for shape in shapes
    ]
    assert list(flat_shapes(text)) == flat


@pytest.mark.parametrize("text", ["", "not JSON", "7", '"text"', "{}"])
def test_what_is_no_list_is_one_text_and_no_shapes(text: str) -> None:
    assert element_texts(text) == (text,)
    assert flat_shapes(text) == ()


def test_a_text_is_parsed_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr(texts.json, "loads", lambda text: (parsed.append(text), loads(text))[1])
    for _ in range(3):
        assert element_texts("[[2,3],[71]]") == ("[2, 3]", "[71]")
        assert flat_shapes("[[2,3],[71]]") == ((2, 3), (71,))
    assert parsed == ["[[2,3],[71]]"]
