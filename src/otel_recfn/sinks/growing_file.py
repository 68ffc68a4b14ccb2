"""A file that grows by what is appended, under a name that leads to no other user's file.

    content │ tail       what is appended takes the tail's place; ``show`` writes a new one behind it

A kill in the middle of a write cuts the file there, at the latest where the content ended before: its form has to bear that.

The file is made under a name that can't be foreseen and gets its own name with the first ``show``, so it takes the place of
what was there before as a whole. It is locked as long as it is written, so that two processes don't write one file.

The system follows any link of a path to where the process may write: for root, anywhere. Here a link in place of the file is
followed if it belongs to this user or to root. One in place of a directory is also followed if it belongs to the owner of the
directory around it, who decides there anyway (as Linux does in sticky directories, ``protected_symlinks``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path

FIRST_OWN_DESCRIPTOR = 3
"""The first descriptor beyond standard input, output and error, which a program may have closed."""
BASE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Identity = tuple[int, int]
"""A file's device and inode."""
MAX_LINKS = 40


class FileInUseError(OSError):
    """Another process, or another part of this one, writes the file."""


class DescriptorLostError(OSError):
    """Somebody else closed the descriptor, whose number may be another file by now."""


class OwnFile:
    """A regular file that we have opened, never through a link, on a descriptor above 2 that no other program inherits.

    A program may close descriptors that it did not open (``os.closerange``, daemonising) and then open files of its own, which
    get the same numbers. So each use first checks that the number still leads to what we opened: the same device and inode. One
    race remains: a thread of the program may close and open files between our check and our use, which are two system calls.
    """

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
        """Create a file that only this user may read and write; FileExistsError if the name is taken."""
        return cls(path, os.O_CREAT | os.O_EXCL)

    def status(self) -> os.stat_result:
        """The file's ``os.fstat``.

        Raises:
            DescriptorLostError: the descriptor is not ours any more. So do all methods that use it
                but ``close``.
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

    def lock(self) -> None:
        """Lock the file against other processes until it is closed. Does nothing on a file system without locks.

        Raises:
            FileInUseError: another one was faster.
        """
        descriptor = self._checked()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileInUseError(error.errno, "it is being written already") from None
        except OSError:
            pass

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of the data at an offset."""
        with memoryview(data) as view:  # released even if a traceback keeps this frame alive
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += os.pwrite(self._checked(), rest, offset + done)

    def truncate(self, length: int) -> None:
        """Cut the file, or fill it up with zeros."""
        os.ftruncate(self._checked(), length)

    def set_mode(self, mode: int) -> None:
        """Set permission bits; does nothing on a file system without them."""
        descriptor = self._checked()
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, mode)

    def close(self) -> None:
        """Close the descriptor if it is still ours. Never raises."""
        with contextlib.suppress(OSError):  # it isn't ours, or its last write failed, which is too late to report
            os.close(self._checked())
        self._fd = -1

    def _checked(self) -> int:
        self.status()
        return self._fd


class FileGoneError(OSError):
    """The name doesn't lead to the file any more."""


class PathRefusedError(OSError):
    """A path that may not be written; ``strerror`` says why, and the way out."""


class GrowingFile:
    """Content that is appended, then shown with a tail.

    Args:
        path: the file; an existing one is replaced by the first ``show``, and keeps its permissions. A new one is this user's
            alone.

    Raises:
        FileInUseError: someone else has the file open through this class.
        PathRefusedError: it belongs to somebody else, or is no regular file.
        OSError: the file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = followed(path)
        """The path without symbolic links."""
        self._name = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.next")
        """The current name of the file."""
        self.length = self._shown = 0
        """The length of the content, and of the part of it that was shown."""
        self._is_whole = False
        """Whether the file is as it was shown last."""
        self._file = OwnFile.create(self._name)
        try:
            self._file.lock()
            # On some file systems every file belongs to one user, ours too.
            self._owners = {os.geteuid(), self._file.owner}
            if (previous := self._previous()) is not None:
                previous.close()
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
            with contextlib.suppress(OSError):  # it is cut before the next write then
                self._cut()

    def close(self) -> None:
        """Close the file as it was shown; without a ``show``, none is left."""
        if self._name == self.path:
            self.take_back()
        elif self._file.is_at(self._name):
            with contextlib.suppress(OSError):
                self._name.unlink()
        self._file.close()

    def close_in_child(self) -> None:
        """Close the descriptor that a forked child has inherited; the file belongs to the parent."""
        self._file.close()

    def _cut(self) -> None:
        """Cut off what is behind the shown content, so that a kill can't leave the rest of it behind new content."""
        if self.length == self._shown:
            self._is_whole = False
            self._file.truncate(self.length)

    def _check(self) -> None:
        """Check that the name leads to the file; the descriptor is checked at each use."""
        if not self._file.is_at(self._name):
            raise FileGoneError(errno.ESTALE, f"{self.path} was removed or replaced; the rest is not written")

    def _install(self) -> None:
        """Give the file its name, in place of a file that may be replaced."""
        previous = self._previous()
        try:
            if previous is None:
                _move_to_free_name(self._name, self.path)
            else:
                status = previous.status()
                if status.st_nlink == 1:  # another user may have planted one of several names of a file
                    self._file.set_mode(status.st_mode & 0o777)
                os.replace(self._name, self.path)
            self._name = self.path
        finally:
            if previous is not None:
                previous.close()

    def _previous(self) -> OwnFile | None:
        """The file that has the name now, locked, if it may be replaced; None if there is none."""
        try:
            status = os.lstat(self.path)
            if stat.S_ISDIR(status.st_mode):
                raise PathRefusedError(errno.EISDIR, "it is a directory; choose another name")
            if not stat.S_ISREG(status.st_mode):
                raise PathRefusedError(errno.EINVAL, "it is not a regular file; remove it or choose another name")
            if status.st_uid not in self._owners:
                text = f"it belongs to user {status.st_uid}; have it removed or choose another name"
                raise PathRefusedError(errno.EPERM, text)
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


def _move_to_free_name(source: Path, target: Path) -> None:
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


def followed(path: str | os.PathLike[str]) -> Path:
    """The absolute path that is meant, without links; the file need not exist.

    Raises:
        PathRefusedError: a link of another user stands in the way.
        OSError: a directory is missing, or may not be searched.
    """
    done, rest, links = Path("/"), _parts(absolute(path)), 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done.parent
            continue
        done /= part
        try:
            status = os.lstat(done)
        except FileNotFoundError:
            if rest:
                raise
            return done
        if not stat.S_ISLNK(status.st_mode):
            continue
        links += 1
        if links > MAX_LINKS:
            raise PathRefusedError(errno.ELOOP, "its symbolic links lead in a circle; correct them")
        if status.st_uid not in _trusted_owners() and not (rest and status.st_uid == os.lstat(done.parent).st_uid):
            text = f"{done} is a symbolic link of user {status.st_uid}; give the path that it leads to, or another one"
            raise PathRefusedError(errno.ELOOP, text)
        target = os.readlink(done)
        done = Path("/") if os.path.isabs(target) else done.parent
        rest += _parts(target)
    return done


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path, with its links; FileNotFoundError for a relative path if the working directory was removed."""
    text = os.fspath(path)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def _trusted_owners() -> set[int]:
    """This user and root. In a user namespace root may have another number: that of the owner of ``/``."""
    return {0, os.geteuid(), os.lstat("/").st_uid}


def _parts(path: str) -> list[str]:
    """The names in a path, the first one last, so that ``pop`` takes them in order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
