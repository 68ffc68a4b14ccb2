"""Texts as rows have them."""

from __future__ import annotations


def clean_text(text: str, max_bytes: int) -> str:
    """Text that every encoder takes: lone surrogates escaped, cut at a character so that it fits ``max_bytes`` of UTF-8."""
    if len(text) <= max_bytes and text.isascii():
        return text
    return text[:max_bytes].encode("utf-8", "backslashreplace")[:max_bytes].decode("utf-8", "ignore")


def utf8_size(text: str) -> int:
    """How many bytes of UTF-8 ``clean_text`` makes of it, if it isn't cut."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))
