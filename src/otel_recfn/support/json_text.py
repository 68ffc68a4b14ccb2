"""Texts as UTF-8, which can't hold lone surrogates, and as JSON strings with as few escapes as possible.

Perfetto refuses a whole trace for one character beyond U+FFFF that is written as an escaped pair of surrogates, and shows other
escaped characters as their escapes.
"""

from __future__ import annotations

import json
import re

SURROGATE = re.compile("[\ud800-\udfff]")


def json_string(text: str) -> str:
    """The text as a JSON string that can be encoded as UTF-8."""
    return json_of_utf8(json.dumps(text, ensure_ascii=False))


def json_value(value: object) -> str:
    """Texts, integers, and lists and dicts of them as JSON that can be encoded as UTF-8, as ``json.dumps`` writes it.

    That one makes functions, and CPython 3.13 crashes where it finds no memory for one.
    """
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, list):
        return f"[{', '.join([json_value(one) for one in value])}]"
    if isinstance(value, dict):
        return f"{{{', '.join([f'{json_string(key)}: {json_value(one)}' for key, one in value.items()])}}}"
    return str(value) if type(value) is int else json.dumps(value)


def json_of_utf8(json_text: str) -> str:
    """The same JSON with lone surrogates, which have no UTF-8 and only stand inside strings, as the text ``\\udxxx``."""
    if json_text.isascii():
        return json_text
    return SURROGATE.sub(_as_text, json_text)


def _as_text(surrogate: re.Match[str]) -> str:
    return f"\\\\u{ord(surrogate[0]):04x}"


def text_of_utf8(text: str) -> str:
    """The same text with lone surrogates escaped as ``\\udxxx``: one that UTF-8 can hold."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
