"""A file that grows by what is appended. It is locked as long as it is written, so that two processes don't write one file.

    content │ tail       what is appended takes the tail's place; ``show`` writes a new one behind it

A kill in the middle of a write cuts the file there, at the latest where the content ended before: its form has to bear that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat


class FileInUseError(OSError):
    """Another process, or another part of this one, writes the file."""


class GrowingFile:
    """Content that is appended, then shown with a tail.

    Args:
        path: the file; what an existing one has is given up, but for its permissions. A new one is this user's alone.

    Raises:
        FileInUseError: someone else has the file open through this class.
        OSError: the file can't be opened, or is no regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.length = self._shown = 0
        """The length of the content, and of the part of it that was shown."""
        self._is_whole = False
        """Whether the file is as it was shown last."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
            self._identity = status.st_dev, status.st_ino
            _lock(self._fd)
            os.ftruncate(self._fd, 0)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, data: bytes | memoryview) -> None:
        """Write these bytes at the end of the content."""
        if len(data):
            self._cut()
            self._write_at(data, self.length)
            self.length += len(data)

    def show(self, tail: bytes, beginning: bytes = b"") -> None:
        """Let the file consist of what was appended so far and of ``tail``, until more is appended.

        ``beginning`` takes the place of as many bytes at the beginning of the content.
        """
        self._cut()
        self._write_at(tail, self.length)
        self._write_at(beginning, 0)
        self._shown, self._is_whole = self.length, True

    def take_back(self) -> None:
        """Go on as if nothing had been appended since ``show``; there is no tail until the next one."""
        self.length = self._shown
        if not self._is_whole:
            with contextlib.suppress(OSError):  # it is cut before the next write then
                self._cut()

    def close(self) -> None:
        """Close the file as it was shown."""
        self.take_back()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the descriptor that a forked child has inherited; the file belongs to the parent."""
        with contextlib.suppress(
            OSError
        ):  # it isn't ours, or its last write failed, which is too late to report
            os.close(self._own())
        self._fd = -1

    def _cut(self) -> None:
        """Cut off what is behind the shown content, so that a kill can't leave the rest of it behind new content."""
        if self.length == self._shown:
            self._is_whole = False
            os.ftruncate(self._own(), self.length)

    def _write_at(self, data: bytes | memoryview, offset: int) -> None:
        with memoryview(data) as view:  # released even if a traceback keeps this frame alive
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += os.pwrite(self._own(), rest, offset + done)

    def _own(self) -> int:
        """The descriptor, if it is still ours: a program may close those that it did not open (``os.closerange``), and then
        open a file of its own under the same number."""
        with contextlib.suppress(OSError):  # the number is free
            status = os.fstat(self._fd)
            if (status.st_dev, status.st_ino) == self._identity:
                return self._fd
        raise OSError(errno.EBADF, "the program closed a descriptor that is not its own")


def _lock(fd: int) -> None:
    """Lock a file against other processes until it is closed. Does nothing on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileInUseError(error.errno, "it is being written already") from None
    except OSError:
        pass
