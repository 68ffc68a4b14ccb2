"""Gzip that can be ended at any moment and then goes on.

    header │ deflate blocks, up to a byte's end │ last blocks, stored: the text's end │ CRC-32, length
           └──── put ... put, flush ───────────► └──── tail: what follows takes its place ──────────

Intel's igzip compresses where it is installed (four times as fast as zlib at its fastest, and smaller), else zlib. After it
``vector_state.cpp`` tidies up, because streams are also written in the program's own threads.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from otel_recfn import _native

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:  # no wheel for this platform
    deflate = zlib

HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x04\xff"
"""RFC 1952: gzip, deflate, no flags, no time, fastest compression, unknown system."""


LARGEST_BLOCK = 65_535
"""RFC 1951: of a stored block."""


class GzipStream:
    """One member of a gzip file."""

    def __init__(self) -> None:
        self._crc = self._length = 0
        self.kept = 0, 0
        """``state()`` where everything was in the file: ``take_back`` goes back to here."""
        self._compressor = _compressor()

    def put(self, data: bytes | memoryview) -> bytes:
        """Take text; returns the bytes that are to be appended to the file."""
        start = b"" if self._length else HEADER
        self._crc = deflate.crc32(data, self._crc)
        self._length += len(data)
        compressed: bytes = self._compressor.compress(data)
        _native.zero_upper_vectors()
        return start + compressed

    def flush(self) -> bytes:
        """Returns the bytes that are still to be appended so that everything that was put is in the file."""
        flushed: bytes = self._compressor.flush(zlib.Z_SYNC_FLUSH)
        _native.zero_upper_vectors()
        return flushed

    def state(self) -> tuple[int, int]:
        """Where the text is that was put so far: ``kept`` is set to it when that is in the file."""
        return self._crc, self._length

    def take_back(self) -> None:
        """Forget what was put since ``kept``. A fresh compressor goes on, which deflate allows at any byte boundary."""
        self._compressor = _compressor()
        self._crc, self._length = self.kept

    def tail(self, end: bytes) -> bytes:
        """Returns the bytes that end the file after ``flush``: the text ends with ``end`` then."""
        crc = zlib.crc32(end, self._crc)
        return _stored(end) + struct.pack("<II", crc, (self._length + len(end)) & 0xFFFFFFFF)


def _stored(text: bytes) -> bytes:
    """As it is, in the last blocks of a stream."""
    blocks = []
    for first in range(0, max(len(text), 1), LARGEST_BLOCK):
        block = text[first : first + LARGEST_BLOCK]
        is_last = first + LARGEST_BLOCK >= len(text)
        blocks.append(struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF) + block)
    return b"".join(blocks)


def _compressor() -> Any:
    return deflate.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
