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
    return json_value(text)


def json_value(value: object) -> str:
    """A text, or lists and dicts of texts and numbers, as JSON that can be encoded as UTF-8."""
    return json_of_utf8(json.dumps(value, ensure_ascii=False))


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
