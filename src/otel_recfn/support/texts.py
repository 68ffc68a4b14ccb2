"""Texts as UTF-8, which can't hold lone surrogates, and as JSON, as they are written and read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

SURROGATE = re.compile("[\ud800-\udfff]")


def utf8_text(text: str) -> str:
    """The same text with lone surrogates escaped as ``\\udxxx``: one that UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_value(value: object) -> str:
    """A text, or lists and dicts of texts and numbers, as JSON that can be encoded as UTF-8.

    With as few escapes as possible: Perfetto refuses a whole trace for one character beyond U+FFFF
    that is written as an escaped pair of surrogates, and shows other escaped characters as their
    escapes.
    """
    return utf8_json(json.dumps(value, ensure_ascii=False))


def utf8_json(json_text: str) -> str:
    """The same JSON with lone surrogates, which only stand inside strings, as the text
    ``\\udxxx``.
    """
    return (
        json_text
        if json_text.isascii()
        else SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", json_text)
    )


# --- lists of shapes and of dtypes; objects of attributes

MAX_PARSED = 4096
"""The most texts of inputs that are kept parsed; programs have few."""


@lru_cache(MAX_PARSED)
def element_texts(text: str) -> tuple[str, ...]:
    """The elements of a JSON list, each as a text that UTF-8 can hold: a string as it is, a shape
    as ``[2, 3]``.

    A text that is no such list is the only element, so that no batch is lost.
    """
    elements = _parsed_list(text)
    if elements is None:
        return (utf8_text(text),)
    return tuple(utf8_text(one) if isinstance(one, str) else json_value(one) for one in elements)


@lru_cache(MAX_PARSED)
def values_by_key(text: str) -> Mapping[str, Any]:
    """The values of a JSON object, as attributes: one that can't be any becomes a text.

    Empty if it is no object.
    """
    try:
        found = json.loads(text)
    except ValueError:  # no JSON
        return {}
    return (
        {utf8_text(key): _attribute_value(value) for key, value in found.items()}
        if isinstance(found, dict)
        else {}
    )


def _attribute_value(value: Any) -> Any:
    if isinstance(value, str):
        return utf8_text(value)
    if (
        isinstance(value, list)
        and len({*map(type, value)}) <= 1
        and all(isinstance(each, (str, int, float)) for each in value)
    ):
        return tuple(map(_attribute_value, value))
    return value if isinstance(value, (int, float)) else json_value(value)


def flat_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor in a JSON list; empty for a list of tensors."""
    shapes = [shape if isinstance(shape, list) else () for shape in _parsed_list(text) or ()]
    return tuple(
        [tuple(shape) if all(isinstance(size, int) for size in shape) else () for shape in shapes]
    )


@lru_cache(MAX_PARSED)
def _parsed_list(text: str) -> tuple[Any, ...] | None:
    try:
        elements = json.loads(text)
    except ValueError:  # no JSON
        return None
    return tuple(elements) if isinstance(elements, list) else None
