"""Text for a file: as it is, or as members of a gzip file, which programs read one after another as
one text.

Perfetto refuses a gzip file that ends within a member, and a killed process has written whole
pages. So no member is in two:

    page │ member │ member │ member, filled up │ page │ member ...

Intel's igzip compresses where it is installed (four times as fast as zlib at its fastest, and
smaller), else zlib. After it ``native/module/module.cpp`` tidies up, because streams are also
written in the program's own threads.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

from otel_recfn import _native

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:  # no wheel for this platform
    deflate = zlib

Data = bytes | memoryview
GZIP_BITS = 31
"""zlib's way to ask for gzip's header."""
PAGE = 4096
MIN_ROOM = 512
"""The least room in a page; a member that leaves less is filled up."""
WAITING_BYTES = 1 << 20
"""The characters of text that are compressed at once."""
FRAME = struct.Struct("<BBBBIBB")
IDENTIFIED = (0x1F, 0x8B)
DEFLATED = 8
EXTRA = 4
FASTEST = 4
UNKNOWN_SYSTEM = 255
"""Bytes of a member's header (RFC 1952)."""
MEMBERS_FRAME = FRAME.size + 8
LAST_BLOCK = b"\x03\x00"
"""An empty last block (RFC 1951)."""


class PlainStream:
    """A stream whose bytes are the text itself.

    ``at`` is the place in the file where they will be.
    """

    def put(self, text: Data, offset: int) -> Data:
        """Take text; returns bytes to append to the file."""
        return text

    def flush(self, offset: int) -> bytes:
        """The bytes to append so that everything that was put is in the file."""
        return b""

    def forget(self) -> None:
        """Forget what was put since ``flush``."""

    def encode_apart(self, text: bytes, offset: int) -> bytes:
        """The bytes of a text that is not put; texts of one length give as many bytes."""
        return text


class GzipStream(PlainStream):
    """A stream of gzip members."""

    def __init__(self) -> None:
        self._compressor: Any = None
        """The compressor; None until the first text, and after what may be left in it was
        forgotten.
        """
        self._waiting = bytearray()
        self._shrinks = 8.0
        """The bytes of text that became one byte, last."""

    def put(self, text: Data, offset: int) -> bytes:
        self._waiting += text
        return self.flush(offset) if len(self._waiting) >= WAITING_BYTES else b""

    def flush(self, offset: int) -> bytes:
        text = self._waiting
        self._waiting = bytearray()
        made = _members(
            text, offset, self._compressed, lambda room: int(room * self._shrinks * 0.95)
        )
        _native.zero_upper_vectors()
        return made

    def forget(self) -> None:
        self._waiting = bytearray()
        self._compressor = None

    def encode_apart(self, text: bytes, offset: int) -> bytes:
        return _members(text, offset, _store_member, lambda room: room - len(_store_member(b"")))

    def _compressed(self, text: memoryview) -> bytes:
        if self._compressor is None:
            self._compressor = deflate.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        compressor = self._compressor
        block: bytes = compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH) + LAST_BLOCK
        self._shrinks = len(text) / len(block)
        return block


def _store_member(text: Data) -> bytes:
    return struct.pack("<BHH", 1, len(text), len(text) ^ 0xFFFF) + text


def _members(
    text: bytes | bytearray,
    offset: int,
    deflated: Callable[[memoryview], bytes],
    fitting: Callable[[int], int],
) -> bytes:
    """Members with this text, none in two pages.

    Args:
        deflated: a text as deflate's blocks, with a last one.
        fitting: how much text fits into a number of bytes.
    """
    made = []
    remaining = memoryview(text)
    while len(remaining):
        room = PAGE - offset % PAGE
        size = fitting(room - MEMBERS_FRAME)
        member = b""
        while not member:
            part = remaining[: max(1, size)]
            member = _member(part, deflated(part), room)
            size = len(part) * 3 // 4
        made.append(member)
        offset += len(member)
        remaining = remaining[len(part) :]
    return b"".join(made)


def _member(text: memoryview, blocks: bytes, room: int) -> bytes:
    """A member that leaves room for another one in its page, or none; empty if it doesn't fit."""
    unused = room - MEMBERS_FRAME - len(blocks)
    if unused < 0 or unused == 1:  # the length of a filling takes two bytes
        return b""
    fill = struct.pack("<H", unused - 2) + bytes(unused - 2) if 0 < unused < MIN_ROOM else b""
    head = FRAME.pack(*IDENTIFIED, DEFLATED, EXTRA if fill else 0, 0, FASTEST, UNKNOWN_SYSTEM)
    return b"".join([head, fill, blocks, struct.pack("<II", deflate.crc32(text), len(text))])
