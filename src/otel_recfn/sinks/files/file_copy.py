"""One of the two copies of a file that is complete at every instant (``whole_file.py``)."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from otel_recfn.sinks.files.hidden_files import make_hidden
from otel_recfn.support.own_file import DescriptorLostError, OwnFile

NO_LONGER_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
"""Errors of opening a name under which our regular file was."""


class FileGoneError(OSError):
    """What was written is no longer under its name, and can't be put there again."""


class Copy:
    """A file of ours under a hidden name or the right one, and how much of its content is right, its end not counted."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = make_hidden(path)
        self.length = 0
        self.tail = b""
        """The end that was written behind the content; empty where there is none now."""

    @property
    def has_name(self) -> bool:
        """Whether its name still leads to it."""
        return self.file.is_at(self.path)

    @property
    def mode(self) -> int:
        """Its permissions."""
        return self.file.status().st_mode & 0o777

    def regain(self) -> bool:
        """Open it anew by its name where its descriptor is lost; whether it was."""
        try:
            self.file.status()
        except DescriptorLostError:
            self.file = self._opened_again()
            return True
        return False

    def append(self, data: bytes | memoryview) -> None:
        """Add to the content."""
        self.tail = b""
        self.file.write_at(data, self.length)
        self.length += len(data)

    def finish(self, tail: bytes) -> None:
        """End it there."""
        self.tail = b""
        self.file.write_at(tail, self.length)
        self.file.truncate(self.length + len(tail))
        self.tail = tail

    def catch_up(self, other: Copy) -> None:
        """Take what the other one has more."""
        while self.length < other.length:
            self.tail = b""
            self.length += self.file.copy_from(other.file, self.length, other.length - self.length)

    def remove(self) -> None:
        """The name, if it is this file's, and the descriptor."""
        if self.has_name:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.file.close()

    def _opened_again(self) -> OwnFile:
        try:
            found = OwnFile(self.path)
        except OSError as error:
            if error.errno in NO_LONGER_THERE:
                raise gone(self.path) from error
            raise
        try:
            if not self._is_same(found):
                raise gone(self.path)
            found.lock()
        except OSError:
            found.close()
            raise
        return found

    def _is_same(self, found: OwnFile) -> bool:
        """By its end too: a file that was made after ours had been deleted may have the same inode."""
        if found.identity != self.file.identity:
            return False
        return not self.tail or found.read_at(len(self.tail) + 1, self.length) == self.tail


def gone(path: Path) -> FileGoneError:
    """The error that says so."""
    return FileGoneError(errno.ESTALE, f"{path} was removed or replaced, and its descriptor closed; the rest is not written")
