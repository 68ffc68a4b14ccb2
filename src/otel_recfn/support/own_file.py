"""An open file of ours, whose descriptor is looked at before each use.

A program may close descriptors that it did not open (``os.closerange``, daemonising) and then open files of its own, which get
the same numbers. So each use first checks that the number still leads to what we opened: the same device and inode.

One race remains: a thread of the program may close and open files between our check and our use, which are two system calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

FIRST_OWN_DESCRIPTOR = 3
"""Below are standard input, output and error, also of a program that has closed them."""
BASE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Identity = tuple[int, int]
"""Device and inode."""


class FileInUseError(OSError):
    """Someone else writes the file: another process, or another part of this one."""


class DescriptorLostError(OSError):
    """The descriptor was closed by somebody else; its number may be another file by now."""


class OwnFile:
    """A regular file that we have opened, never through a link, on a descriptor above 2 that no other program inherits."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self._fd = os.open(path, BASE_FLAGS | flags, 0o600)
        try:
            if self._fd < FIRST_OWN_DESCRIPTOR:
                low, self._fd = self._fd, fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, FIRST_OWN_DESCRIPTOR)
                os.close(low)
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        except BaseException:
            os.close(self._fd)
            raise
        self.identity: Identity = status.st_dev, status.st_ino
        self.owner = status.st_uid

    @classmethod
    def create(cls, path: Path) -> OwnFile:
        """Make a file that only this user may read and write; FileExistsError where the name is taken."""
        return cls(path, os.O_CREAT | os.O_EXCL)

    def status(self) -> os.stat_result:
        """As ``os.fstat`` gives it.

        Raises:
            DescriptorLostError: the descriptor is not ours any more. So do all methods that use it
                but ``unlock`` and ``close``.
        """
        with contextlib.suppress(OSError):  # the number is free
            status = os.fstat(self._fd)
            if (status.st_dev, status.st_ino) == self.identity:
                return status
        raise DescriptorLostError(errno.EBADF, "the program closed a descriptor that is not its own")

    def is_at(self, path: Path) -> bool:
        """Whether the name leads to this file (links not followed), whatever became of the descriptor."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def lock(self) -> bool:
        """Tell other processes that the file is in use, until it is closed; False on a file system without locks.

        Raises:
            FileInUseError: another one was faster.
        """
        descriptor = self._checked()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileInUseError(error.errno, "it is being written already") from None
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        """Take that back, also for descriptors that forked children have. Never raises."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._checked(), fcntl.LOCK_UN)

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of it."""
        with memoryview(data) as view:  # released also where a traceback keeps this frame alive
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += os.pwrite(self._checked(), rest, offset + done)

    def truncate(self, length: int) -> None:
        """Cut it, or fill it up with zeros."""
        os.ftruncate(self._checked(), length)

    def set_mode(self, mode: int) -> None:
        """Permission bits; nothing on a file system without them."""
        descriptor = self._checked()
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, mode)

    def close(self) -> None:
        """Close the descriptor if it still is ours. Never raises."""
        with contextlib.suppress(OSError):  # it isn't ours, or its last write failed, which is too late to be told
            os.close(self._checked())
        self._fd = -1

    def _checked(self) -> int:
        self.status()
        return self._fd


def unlink(path: Path) -> None:
    """Remove a name. No error where that can't be done: what is left is swept up by a later process."""
    with contextlib.suppress(OSError):
        os.unlink(path)
