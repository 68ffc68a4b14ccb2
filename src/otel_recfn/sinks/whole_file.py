"""A file that grows and is complete at every instant, also when the process is killed while writing.

Closing brackets and checksums stand at the end of a file, so appending means overwriting them. A kill in the middle of that one
write cuts it: tried, Linux stops between two pages of a ``pwrite``. So there are two copies. The one under the file's name is
never written to; the hidden one (``.<name>.next``) takes the new content and the new end, then they swap names by ``rename``,
which is atomic, and the one that is now hidden catches up at the next turn. The price is that all is written twice, unless
the file system shares extents: no order of page-sized writes within one file moves its closing bracket without a moment at
which there is none or a second one.

    append  ──► hidden copy        show ──► tail to the hidden copy, swap names
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from pathlib import Path

COPY_BYTES = 1 << 20
AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""Of Linux' linux/fcntl.h and linux/fs.h."""


class FileInUseError(OSError):
    """Someone else writes the file: another process, or another WholeFile of this one."""


class _Copy:
    """An open file and how much of its content is right, its end not counted."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.length = 0
        try:
            _lock(self.fd, path)
        except OSError:
            os.close(self.fd)
            raise

    def append(self, data: bytes | memoryview) -> None:
        _write_at(self.fd, data, self.length)
        self.length += len(data)

    def finish(self, tail: bytes) -> None:
        _write_at(self.fd, tail, self.length)
        os.ftruncate(self.fd, self.length + len(tail))

    def catch_up(self, other: _Copy) -> None:
        while self.length < other.length:
            self.length += _copy(other.fd, self.fd, self.length, other.length - self.length)


class WholeFile:
    """Content that is appended, then shown with an end that makes it whole.

    Args:
        path: the file; an existing one is replaced.
        data: the first content, shown at once.
        tail: its end.

    Raises:
        FileInUseError: someone else has the file open through this class.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, data: bytes | memoryview, tail: bytes) -> None:
        self._path = Path(os.path.realpath(path))
        self._hidden_path = self._path.with_name(f".{self._path.name}.next")
        self._spare_path = self._path.with_name(f".{self._path.name}.last")
        self._shown = _Copy(self._path)
        self._hidden: _Copy | None = None
        self._shown.append(data)
        self._shown.finish(tail)

    def append(self, data: bytes | memoryview) -> None:
        """Add to the content, unseen."""
        self._caught_up().append(data)

    def show(self, tail: bytes) -> int:
        """Let the file be what was appended so far, followed by ``tail``; gives its size."""
        hidden = self._caught_up()
        hidden.finish(tail)
        self._swap_names()
        self._shown, self._hidden = hidden, self._shown
        return hidden.length + len(tail)

    def close(self) -> None:
        """Leave what is shown, and nothing else."""
        if self._hidden is not None:
            self._hidden_path.unlink(missing_ok=True)
            self._spare_path.unlink(missing_ok=True)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Give back the file descriptors that a fork has copied; the files are the parent's."""
        for copy in (self._shown, self._hidden):
            if copy is not None:
                os.close(copy.fd)
        self._hidden = None

    def _caught_up(self) -> _Copy:
        if self._hidden is None:
            self._hidden = _Copy(self._hidden_path)
            os.fchmod(self._hidden.fd, stat.S_IMODE(os.fstat(self._shown.fd).st_mode))
        self._hidden.catch_up(self._shown)
        return self._hidden

    def _swap_names(self) -> None:
        if not _exchange(self._path, self._hidden_path):
            self._swap_by_third_name()

    def _swap_by_third_name(self) -> None:
        """The shown copy gets a second name first, so that its own always leads to a file."""
        self._spare_path.unlink(missing_ok=True)
        try:
            os.link(self._path, self._spare_path)
        except OSError:  # a file system without hard links: for a moment there is no file under the name
            os.rename(self._path, self._spare_path)
        os.replace(self._hidden_path, self._path)
        os.rename(self._spare_path, self._hidden_path)


_renameat2 = None
with contextlib.suppress(OSError, TypeError, AttributeError):  # not Linux, or a C library older than 2018
    _renameat2 = ctypes.CDLL(None).renameat2


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once. A replacing rename would make ext4 begin to write the file to disk, each time."""
    if _renameat2 is None:
        return False
    swapped: bool = _renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
    return swapped


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileInUseError(error.errno, "it is being written already", str(path)) from None
    except OSError:
        return  # a file system without locks


def _copy(source: int, target: int, offset: int, count: int) -> int:
    """Copy some of ``count`` bytes from an offset to the same one; gives how many."""
    try:
        copied = os.copy_file_range(source, target, count, offset, offset)  # no second copy on disk where extents are shared
    except (AttributeError, OSError):
        copied = 0
    if not copied:
        data = os.pread(source, min(COPY_BYTES, count), offset)
        if not data:
            raise OSError("the file is shorter than what was written to it; leave it alone while it is written")
        _write_at(target, data, offset)
        copied = len(data)
    return copied


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
