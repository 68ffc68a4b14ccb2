"""A file that grows by what is appended.

It is locked as long as it is written, so that two processes don't write one file.

    content │ tail    what is appended takes the tail's place; ``show`` writes a new one behind it

A kill in the middle of a write cuts the file there, at the latest where the content ended before:
its form has to bear that. A file that someone deletes or overwrites meanwhile is theirs from then
on (``is_intact``). One that is moved goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

DELETED_BUT_OPEN = (".nfs", ".fuse_hidden")
"""The beginnings of the names that NFS and FUSE give to a deleted file that is still open here."""
COMPARED_BYTES = 1024
"""The bytes at the beginning by which the file is known. A trace's have the run and the process."""


class FileInUseError(OSError):
    """Another process, or another part of this one, writes the file."""


class GrowingFile:
    """Content that is appended, then shown with a tail.

    Args:
        path: the file; what an existing one has is given up, but for its permissions. A new one is
            this user's alone.
        replace: whether an existing file may be taken; else it is an error.

    Raises:
        FileInUseError: someone else has the file open through this class.
        FileExistsError: there is a file that may not be replaced.
        OSError: the file can't be opened, or is no regular file.
    """

    def __init__(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        self.length = self._written_length = 0
        """The length of the content, and of the part of it that was shown."""
        self._whole_size: int | None = None
        """The size of the file while it is as it was shown last, tail included; else None."""
        self._beginning = b""
        """The first bytes of the content as it was shown last."""
        flags = (
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | (0 if replace else os.O_EXCL)
        )
        self._fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
            self._identity = status.st_dev, status.st_ino
            self._has_links = status.st_nlink > 0  # some file systems count none
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
        # Without the tail, which is cut off again.
        before = os.pread(self._own_descriptor(), min(self.length, COMPARED_BYTES), 0)
        self._write_at(tail, self.length)
        self._write_at(beginning, 0)
        self._beginning = (beginning + before[len(beginning) :])[:COMPARED_BYTES]
        self._written_length = self.length
        self._whole_size = self.length + len(tail)

    def is_intact(self) -> bool:
        """Whether the file still has a name, and the size and the beginning that it was shown with.

        True where that can't be found out.
        """
        try:
            status = os.fstat(self._fd)
            if (status.st_dev, status.st_ino) != self._identity:
                return True  # the descriptor isn't ours any more, which the next write reports
            if (self._has_links and status.st_nlink == 0) or self._whole_size not in (
                None,
                status.st_size,
            ):
                return False
            if os.pread(self._fd, len(self._beginning), 0) != self._beginning:
                return False
            name = os.path.basename(os.readlink(f"/proc/self/fd/{self._fd}"))
            return not name.startswith(DELETED_BUT_OPEN)
        except OSError as error:
            # Which NFS says where another machine has deleted the file.
            return error.errno != errno.ESTALE

    def take_back(self) -> None:
        """Go on as if nothing had been appended since ``show``; there is no tail until the next
        one.
        """
        self.length = self._written_length
        if self._whole_size is None:
            with contextlib.suppress(OSError):  # it is cut before the next write then
                self._cut()

    def close(self) -> None:
        """Close the file as it was shown."""
        self.take_back()
        self.leave()

    def leave(self) -> None:
        """Close the descriptor, and leave the file as it is.

        It is somebody else's: that of a forked child's parent, or of whoever deleted or overwrote
        it.
        """
        # It isn't ours, or its last write failed, which is too late to report.
        with contextlib.suppress(OSError):
            os.close(self._own_descriptor())
        self._fd = -1

    def _cut(self) -> None:
        """Cut off what is behind the shown content, so that a kill can't leave the rest of it
        behind new content.
        """
        if self.length == self._written_length:
            self._whole_size = None
            os.ftruncate(self._own_descriptor(), self.length)

    def _write_at(self, data: bytes | memoryview, offset: int) -> None:
        with memoryview(data) as view:  # released even if a traceback keeps this frame alive
            done = 0
            while done < len(view):
                with view[done:] as remaining:
                    done += os.pwrite(self._own_descriptor(), remaining, offset + done)

    def _own_descriptor(self) -> int:
        """The descriptor, if it is still ours: a program may close those that it did not open
        (``os.closerange``), and then open a file of its own under the same number.
        """
        try:
            status = os.fstat(self._fd)
            if (status.st_dev, status.st_ino) == self._identity:
                return self._fd
        except OSError as error:
            if error.errno == errno.ESTALE:  # it is open, and has to be closed
                return self._fd
        raise OSError(errno.EBADF, "the program closed a descriptor that is not its own")


def _lock(fd: int) -> None:
    """Lock a file against other processes until it is closed.

    Does nothing on a file system without locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileInUseError(error.errno, "it is being written already") from None
    except OSError:
        pass
