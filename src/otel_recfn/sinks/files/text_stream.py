"""Text on its way into a file: as it is, or as members of a gzip file, each whole by itself.

Programs read gzip members one after another as one text, so a file to which whole members are appended is whole at each end.

Intel's igzip compresses where it is installed (four times as fast as zlib at its fastest, and smaller), else zlib. After it
``vector_state.cpp`` tidies up, because streams are also written in the program's own threads.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

from otel_recfn import _native

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:  # no wheel for this platform
    deflate = zlib

Data = bytes | memoryview
GZIP_BITS = 31
"""zlib's way to ask for gzip's header."""
MEMBER_BYTES = 1 << 20
"""Compressed, of a member that takes no more text."""


class TextStream(Protocol):
    """Turns text into a file's bytes."""

    def put(self, text: Data) -> Data:
        """Take text; returns the bytes that are to be appended to the file."""

    def flush(self) -> bytes:
        """Returns the bytes that are still to be appended so that everything that was put is in the file."""

    def forget(self) -> None:
        """What was put since ``flush`` is not wanted in the file."""

    def alone(self, text: bytes) -> bytes:
        """A text by itself, which may stand anywhere between others; as many bytes for each of one length."""


class PlainStream:
    """As it is."""

    def put(self, text: Data) -> Data:
        """The text."""
        return text

    def flush(self) -> bytes:
        """Nothing: all was returned by ``put``."""
        return b""

    def forget(self) -> None:
        """Nothing waits here."""

    def alone(self, text: bytes) -> bytes:
        """The text."""
        return text


class GzipStream:
    """As gzip members."""

    def __init__(self) -> None:
        self._compressor: Any = None
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, text: Data) -> bytes:
        """Compress text; returns a member when it is large."""
        if self._compressor is None:
            self._compressor = deflate.compressobj(1, zlib.DEFLATED, GZIP_BITS)
        part = self._compressor.compress(text)
        _native.zero_upper_vectors()
        self._parts.append(part)
        self._size += len(part)
        return self.flush() if self._size >= MEMBER_BYTES else b""

    def flush(self) -> bytes:
        """The member of what was put since the last one; nothing where that is nothing."""
        if self._compressor is None:
            return b""
        end = self._compressor.flush()
        _native.zero_upper_vectors()
        member = b"".join([*self._parts, end])
        self.forget()
        return member

    def forget(self) -> None:
        """Begin a member anew."""
        self._compressor, self._parts, self._size = None, [], 0

    def alone(self, text: bytes) -> bytes:
        """A member with the text stored as it is."""
        storing = zlib.compressobj(0, zlib.DEFLATED, GZIP_BITS)
        return storing.compress(text) + storing.flush()
