"""One of the two copies of a file that is complete at every instant (``whole_file.py``)."""

from __future__ import annotations

import errno
from pathlib import Path

from otel_recfn.sinks.files.hidden_files import discard, make_hidden
from otel_recfn.support.insisting import insist
from otel_recfn.support.own_file import DescriptorLostError, OwnFile, unlink

NO_LONGER_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
"""What opening a name gives where the regular file of ours that had it is gone."""


class FileGoneError(OSError):
    """What was written is no longer under its name, and can't be put there again."""


class Copy:
    """A file of ours, under a hidden name or the right one, and the length of its valid content without its end."""

    def __init__(self, path: Path) -> None:
        self.length = 0
        self.tail = b""
        """The end that is written after the content; empty while there is none."""
        made = make_hidden(path)
        try:
            self.path, self.file = made
        except BaseException:  # taking a pair apart, and setting an attribute, may need memory, too
            discard(made[0], made[1])
            raise

    @property
    def has_name(self) -> bool:
        """Whether its name still leads to it."""
        return self.file.is_at(self.path)

    @property
    def mode(self) -> int:
        """Its permissions."""
        return self.file.status().st_mode & 0o777

    def regain(self) -> bool:
        """Where the program has closed its descriptor, open it again by its name. Returns whether that was needed."""
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
        """Write the end after the content, and cut off whatever stands behind."""
        self.tail = b""
        self.file.write_at(tail, self.length)
        self.file.truncate(self.length + len(tail))
        self.tail = tail

    def catch_up(self, other: Copy) -> None:
        """Copy the content that the other one has and this one lacks."""
        while self.length < other.length:
            self.tail = b""
            self.length += self.file.copy_from(other.file, self.length, other.length - self.length)

    def remove(self) -> None:
        """Remove the name, if it still leads to this file, and close the descriptor, also where memory is short."""
        try:
            insist(Copy._remove_name, self)
        finally:
            self.file.close()

    def _remove_name(self) -> None:
        if self.has_name:
            unlink(self.path)

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
        except BaseException:
            found.close()
            raise
        return found

    def _is_same(self, found: OwnFile) -> bool:
        """Compares the end too: a file that was made after ours had been deleted may have the same inode number."""
        if found.identity != self.file.identity:
            return False
        return not self.tail or found.read_at(len(self.tail) + 1, self.length) == self.tail


def gone(path: Path) -> FileGoneError:
    """The error for a file of ours that was removed or replaced."""
    return FileGoneError(errno.ESTALE, f"{path} was removed or replaced, and its descriptor closed; the rest is not written")
