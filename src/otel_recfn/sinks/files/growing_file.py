"""A file that grows by what is appended, under a name that leads to no other user's file.

    content │ tail       what is appended takes the tail's place; ``show`` writes a new one behind it

A kill in the middle of a write cuts the file there, at the latest where the content ended before: its form has to bear that.

The file is made under a name that can't be foreseen and gets its own name with the first ``show``, so it takes the place of
what was there before as a whole. It is locked as long as it is written, so that two processes don't write one file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from otel_recfn.sinks.files.followed_path import PathRefusedError, followed
from otel_recfn.support.own_file import FileInUseError, OwnFile, unlink

LONGEST_ADDITION = len(".") + len(".0123456789abcdef.next")
"""What a hidden name has beyond the file's."""


class FileGoneError(OSError):
    """Its name doesn't lead to the file any more."""


class GrowingFile:
    """Content that is appended, then shown with a tail.

    Args:
        path: the file; an existing one is replaced by the first ``show``, and keeps its permissions.
        mode: permissions of a new file.

    Raises:
        FileInUseError: someone else has the file open through this class.
        PathRefusedError: it belongs to somebody else, or is no regular file.
        OSError: the file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], *, mode: int = 0o600) -> None:
        self.path = followed(path)
        """Without symbolic links."""
        self._mode = mode
        self._name = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.next")
        """What it is called now."""
        self.length = self._shown = 0
        """Of the content, and of what of it was shown."""
        self._is_whole = False
        """The file is as it was shown last."""
        self._file = OwnFile.create(self._name)
        try:
            self._file.lock()
            # On some file systems every file belongs to one user, ours too.
            self._owners = {os.geteuid(), self._file.owner}
            _close(self._previous())
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes | memoryview) -> None:
        """Add to the content."""
        if len(data):
            self._check()
            self._cut()
            self._file.write_at(data, self.length)
            self.length += len(data)

    def show(self, tail: bytes, beginning: bytes = b"") -> None:
        """Let the file consist of what was appended so far and of ``tail``.

        Args:
            tail: behind the content, until more is appended.
            beginning: takes the place of as many bytes at the beginning of the content.
        """
        self._check()
        self._cut()
        self._file.write_at(tail, self.length)
        self._file.write_at(beginning, 0)
        if self._name != self.path:
            self._install()
        self._shown, self._is_whole = self.length, True

    def take_back(self) -> None:
        """Go on as if nothing had been appended since ``show``; there is no tail until the next one."""
        self.length = self._shown
        if not self._is_whole:
            with contextlib.suppress(OSError):  # then it is cut before the next write
                self._cut()

    def close(self) -> None:
        """Close the file as it was shown; without a ``show``, none is left."""
        if self._name != self.path:
            if self._file.is_at(self._name):
                unlink(self._name)
        else:
            self.take_back()
        self._file.close()

    def close_in_child(self) -> None:
        """Close the descriptor that a forked child has inherited; the file belongs to the parent."""
        self._file.close()

    def _cut(self) -> None:
        """Cut off what stands behind what was shown: a kill would leave the rest of it behind what is written there."""
        if self.length == self._shown:
            self._is_whole = False
            self._file.truncate(self.length)

    def _check(self) -> None:
        """That the name leads to the file; each use of the descriptor sees itself whether it still is ours."""
        if not self._file.is_at(self._name):
            raise FileGoneError(errno.ESTALE, f"{self.path} was removed or replaced; the rest is not written")

    def _install(self) -> None:
        """Give the file its name, in place of a file that may be replaced."""
        previous = self._previous()
        try:
            self._file.set_mode(_kept_mode(previous.status(), self._mode) if previous else self._mode)
            if previous is not None:
                os.replace(self._name, self.path)
            else:
                _move_to_free_name(self._name, self.path)
            self._name = self.path
        finally:
            _close(previous)

    def _previous(self) -> OwnFile | None:
        """The file that has the name now, locked, if it may be replaced; None where there is none."""
        try:
            self._check_previous(os.lstat(self.path))
            found = OwnFile(self.path)
        except FileNotFoundError:
            return None
        try:
            found.lock()
            if not found.is_at(self.path):
                raise FileInUseError(errno.EBUSY, "somebody else is replacing it")
        except BaseException:
            found.close()
            raise
        return found

    def _check_previous(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise PathRefusedError(errno.EISDIR, "it is a directory; choose another name")
        if not stat.S_ISREG(status.st_mode):
            raise PathRefusedError(errno.EINVAL, "it is not a regular file; remove it or choose another name")
        if status.st_uid not in self._owners:
            raise PathRefusedError(errno.EPERM, f"it belongs to user {status.st_uid}; have it removed or choose another name")


def _close(previous: OwnFile | None) -> None:
    if previous is not None:
        previous.close()


def _kept_mode(previous: os.stat_result, mode: int) -> int:
    """The permissions of a file that is replaced; not of one with further names, one of which another user may have planted."""
    return previous.st_mode & 0o777 if previous.st_nlink == 1 else mode


def _move_to_free_name(source: Path, target: Path) -> None:
    """Give a file another name.

    Raises:
        FileInUseError: somebody else has just made a file of that name.
    """
    try:
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            OwnFile.create(target).close()
            os.replace(source, target)
        else:
            os.unlink(source)
    except FileExistsError as error:
        raise FileInUseError(errno.EBUSY, "somebody else has just made it") from error
