"""Text on its way into a file, as it is; ``gzip_stream.py`` compresses it."""

from __future__ import annotations

from typing import Protocol

Data = bytes | memoryview


class TextStream(Protocol):
    """Turns text into the file's bytes, as it is or compressed."""

    kept: tuple[int, int]
    """``state()`` where everything was in the file; set without a call, which may find no memory."""

    def put(self, data: Data) -> Data:
        """Take text; returns the bytes that are to be appended to the file."""

    def flush(self) -> bytes:
        """Returns the bytes that are still to be appended so that everything that was put is in the file."""

    def tail(self, end: bytes) -> bytes:
        """Returns the bytes that end the file here; its text then ends with ``end``."""

    def state(self) -> tuple[int, int]:
        """Where the text is that was put so far."""

    def take_back(self) -> None:
        """What was put since ``kept`` did not get into the file: go on as if it had not been put."""


class PlainStream:
    """As it is."""

    kept = 0, 0

    def put(self, data: Data) -> Data:
        """The text."""
        return data

    def flush(self) -> bytes:
        """Nothing: all was returned by ``put``."""
        return b""

    def tail(self, end: bytes) -> bytes:
        """The text's end."""
        return end

    def state(self) -> tuple[int, int]:
        """Text needs no memory of what went before."""
        return self.kept

    def take_back(self) -> None:
        """Text needs no memory of what went before."""
