"""Protocol Buffers' wire format, as far as OTLP needs it: a few lines in place of a dependency, and nothing to import later.

A message is a row of fields; each begins with its number and a type, both in one varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED64, _FIXED32, _DOUBLE = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<d")
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte; negative ones as 64 bits."""
    value &= _MASK
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def integer(number: int, value: int) -> bytes:
    """A field with a whole number, a truth value or one of an enumeration."""
    return varint(number << 3 | VARINT) + varint(value)


def fixed64(number: int, value: int) -> bytes:
    """A field with 64 bits."""
    return varint(number << 3 | FIXED64) + _FIXED64.pack(value)


def fixed32(number: int, value: int) -> bytes:
    """A field with 32 bits."""
    return varint(number << 3 | FIXED32) + _FIXED32.pack(value)


def double(number: int, value: float) -> bytes:
    """A field with a floating point number."""
    return varint(number << 3 | FIXED64) + _DOUBLE.pack(value)


def field(number: int, content: bytes) -> bytes:
    """A field with bytes, a text in UTF-8 or a message."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """A field with a text; lone surrogates, which UTF-8 can't hold, are escaped. Nothing for an empty one, as is usual."""
    return field(number, value.encode("utf-8", "backslashreplace")) if value else b""


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, type and content of each field of a message.

    Raises:
        ValueError: it is none.
    """
    at = 0
    while at < len(message):
        key, at = _varint_at(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint_at(message, at)
            yield key >> 3, kind, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if size is None:
            if kind != BYTES:
                raise ValueError(f"type {kind} of a field")
            size, at = _varint_at(message, at)
        if at + size > len(message):
            raise ValueError("a field ends after its message")
        yield key >> 3, kind, message[at : at + size]
        at += size


def signed(value: int) -> int:
    """The number that 64 bits stand for."""
    return value - (1 << 64) if value >> 63 else value


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number without an end")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & _MASK, at
