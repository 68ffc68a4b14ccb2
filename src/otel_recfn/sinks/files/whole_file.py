"""A file that grows and is complete at every instant, also when the process is killed while writing.

Closing brackets and checksums stand at the end of a file, so appending means overwriting them. A kill in the middle of that one
write cuts it: tried, Linux stops between two pages of a ``pwrite``. So there are two copies. The one under the file's name is
never written to; the hidden one takes the new content and the new end, then they swap names by ``rename``, which is atomic, and
the one that is now hidden catches up at the next turn. The price is that all is written twice, unless the file system shares
extents: no order of page-sized writes within one file moves its closing bracket without a moment at which there is none or a
second one.

    append  ──► hidden copy        show ──► tail to the hidden copy, swap names

Both begin hidden, so that the file takes the place of what was there before, whole and at once. The hidden one needs its name
for the swap (Linux gives a file without a name one only once), so a killed process leaves it: SIGTERM's default removes it
(``last_minute.py``), and the next process that writes the file sweeps it up (``hidden_files.py``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.files.file_copy import Copy, FileGoneError
from otel_recfn.sinks.files.followed_path import PathRefusedError, followed
from otel_recfn.sinks.files.hidden_files import hidden_path, remove_left_over
from otel_recfn.sinks.files.last_minute import RemovedAtSigterm
from otel_recfn.sinks.files.renaming import exchange, move_to_free_name
from otel_recfn.support.insisting import insist
from otel_recfn.support.own_file import FileInUseError, OwnFile

ATTEMPTS = 10


class WholeFile:
    """Content that is appended, then shown with an end that makes it whole.

    Args:
        path: the file; an existing one is replaced by the first ``show``, and keeps its permissions.
        family: names (a regular expression) of files whose hidden files are removed too, where killed processes left them.
        mode: permissions of a new file.

    Raises:
        FileInUseError: someone else has the file open through this class.
        PathRefusedError: it belongs to somebody else, or is no regular file.
        OSError: the file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], *, family: str | None = None, mode: int = 0o600) -> None:
        self.path = followed(path)
        """Without symbolic links."""
        self.renewed = 0
        """How often the file, its name or a descriptor was lost and made again."""
        name = re.escape(self.path.name)
        self._family = f"(?:{family}|{name})" if family else name
        self._mode = mode
        self._is_shown = False
        hidden = other = None
        try:
            hidden = self._hidden = Copy(self.path)
            # On some file systems every file belongs to one user, ours too.
            self._owners = {os.geteuid(), hidden.file.owner}
            self._release(self._previous())
            other = self._other = Copy(self.path)  # now, because later no descriptor may be free
            self._at_sigterm = RemovedAtSigterm(other.path, (hidden.file.identity, other.file.identity))
        except BaseException:
            try:
                _remove(hidden)
            finally:
                _remove(other)
            raise

    def append(self, data: bytes | memoryview) -> None:
        """Add to the content, unseen."""
        self._caught_up().append(data)

    def take_back(self) -> bool:
        """Forget what was appended since ``show``. Raises only MemoryError: it is called again then.

        False where it is shown all the same: ``show`` was interrupted after the names were swapped.
        """
        if self._hidden.tail and self._hidden.file.is_at(self.path):
            self._take_names_as_they_are()
            return False
        self._hidden.length = min(self._hidden.length, self._other.length)
        with contextlib.suppress(OSError, *OUT_OF_MEMORY):  # what stands behind is overwritten, and cut off by ``show``
            self._hidden.file.truncate(self._hidden.length)
        return True

    def show(self, tail: bytes) -> int:
        """Make the file consist of what was appended so far and of ``tail``; returns its size.

        Raises:
            FileGoneError: someone put another file in its place.
        """
        self._caught_up().finish(tail)
        size = self._hidden.length + len(tail)  # now, because nothing may fail when it is shown
        if not self._is_shown:
            self._install(self._mode)
        elif self._other.has_name:
            self.renewed += self._other.regain()
            self._swap_names()
        else:
            self._install_again()
        self._is_shown = True
        self._hidden, self._other = self._other, self._hidden
        return size

    def close(self) -> None:
        """Close the file as it is shown, and remove the hidden copy."""
        insist(RemovedAtSigterm.call_off, self._at_sigterm)
        try:
            self._hidden.remove()
        finally:
            if self._is_shown:
                self._other.file.close()
            else:
                self._other.remove()
        self.sweep()

    def close_in_child(self) -> None:
        """Close the descriptors that a forked child has inherited; the files belong to the parent."""
        self._hidden.file.close()
        self._other.file.close()

    def sweep(self) -> None:
        """Remove hidden files that killed processes left."""
        remove_left_over(self.path.parent, self._family, self._owners)

    def _caught_up(self) -> Copy:
        """The hidden copy, opened again where needed, with everything that is shown."""
        try:
            self.renewed += self._hidden.regain()
        except FileGoneError:
            self._replace_hidden()
        if self._hidden.length < self._other.length:
            if not self._hidden.has_name:  # the user may have moved it and keep it: it is not written to any more
                self._replace_hidden()
            self.renewed += self._other.regain()
            self._hidden.catch_up(self._other)
        return self._hidden

    def _replace_hidden(self) -> None:
        """Make a new hidden copy; it will begin with what is shown."""
        if self._hidden.length > self._other.length:
            raise OSError(errno.EAGAIN, "what was written last is lost with the hidden file that had it")
        fresh = Copy(self.path)
        self._hidden.file.close()
        self._hidden = fresh
        self.renewed += 1
        self._tell_sigterm()

    def _tell_sigterm(self) -> None:
        self._at_sigterm.call_off()
        self._at_sigterm = RemovedAtSigterm(self._hidden.path, (self._hidden.file.identity, self._other.file.identity))

    def _swap_names(self) -> None:
        if not self._hidden.has_name:
            self._give_hidden_a_name()
        mode = self._other.mode  # the user may change it at any time
        if self._hidden.mode != mode:
            self._hidden.file.set_mode(mode)
        if not exchange(self._other.path, self._hidden.path):
            self._swap_by_third_name()
        self._hidden.path, self._other.path = self._other.path, self._hidden.path

    def _take_names_as_they_are(self) -> None:
        """A signal handler raised right after the names were swapped: note that they were."""
        if self._is_shown and self._hidden.path != self.path:
            self._other.path = self._hidden.path
        self._hidden.path = self.path
        self._is_shown = True
        self._hidden, self._other = self._other, self._hidden

    def _give_hidden_a_name(self) -> None:
        """Copy its content into a new file: Linux gives no new name to a file that has lost its own."""
        nameless, fresh = self._hidden, Copy(self.path)
        try:
            fresh.catch_up(nameless)
            fresh.finish(nameless.tail)
        except BaseException:
            fresh.remove()
            raise
        nameless.file.close()
        self._hidden = fresh
        self.renewed += 1
        self._tell_sigterm()

    def _swap_by_third_name(self) -> None:
        """The shown copy gets a second name first, so that its own always leads to a file."""
        spare = hidden_path(self.path, "last")
        self._at_sigterm.call_off()
        try:
            try:
                os.link(str(self.path), str(spare))
            except OSError:  # a file system without hard links: for a moment there is no file under the name
                os.rename(str(self.path), str(spare))
            os.replace(str(self._hidden.path), str(self.path))
        except BaseException:
            if not self._hidden.file.is_at(self.path):
                self._give_back(spare)
            raise
        os.rename(str(spare), str(self._hidden.path))
        self._tell_sigterm()

    def _give_back(self, spare: Path) -> None:
        """Undo the first step of ``_swap_by_third_name``: the shown copy keeps, or gets back, its own name alone."""
        with contextlib.suppress(FileNotFoundError):  # that step was not taken
            if os.path.lexists(str(self.path)):
                os.unlink(str(spare))
            else:
                os.rename(str(spare), str(self.path))

    def _install(self, mode: int) -> None:
        """Put the hidden copy under the file's name, in place of a file that may be replaced."""
        for _ in range(ATTEMPTS):
            previous = self._previous()
            try:
                self._hidden.file.set_mode(_kept_mode(previous.status(), mode) if previous else mode)
                if previous is not None:
                    os.replace(str(self._hidden.path), str(self.path))
                elif not move_to_free_name(self._hidden.path, self.path):
                    continue  # another process has just made a file of that name
                self._hidden.path = self.path
                return
            finally:
                self._release(previous)
        raise FileInUseError(errno.EBUSY, "it is being replaced by others all the time")

    def _install_again(self) -> None:
        """The file was deleted or moved, and no other has its name now: the hidden copy is put there."""
        if os.path.lexists(str(self.path)):
            raise FileGoneError(errno.ESTALE, f"another file was put in the place of {self.path}; the rest is not written")
        mode, fresh = self._other.mode, Copy(self.path)
        try:
            if not self._hidden.has_name:
                self._give_hidden_a_name()
            self._install(mode)
        except BaseException:
            fresh.remove()
            raise
        self._other.file.close()
        self._other = fresh
        self.renewed += 1
        self._tell_sigterm()

    def _previous(self) -> OwnFile | None:
        """The file that has the name now, locked, if it may be replaced; None where there is none."""
        for _ in range(ATTEMPTS):
            try:
                self._check_previous(os.lstat(str(self.path)))
                found = OwnFile(self.path)
            except FileNotFoundError:
                return None
            try:
                found.lock()
                if found.is_at(self.path):
                    return found
            except BaseException:
                found.close()
                raise
            found.close()
        raise FileInUseError(errno.EBUSY, "it is being replaced by others all the time")

    def _check_previous(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise PathRefusedError(errno.EISDIR, "it is a directory; choose another name")
        if not stat.S_ISREG(status.st_mode):
            raise PathRefusedError(errno.EINVAL, "it is not a regular file; remove it or choose another name")
        if status.st_uid not in self._owners:
            raise PathRefusedError(errno.EPERM, f"it belongs to user {status.st_uid}; have it removed or choose another name")

    @staticmethod
    def _release(previous: OwnFile | None) -> None:
        if previous is not None:
            previous.close()


def _remove(copy: Copy | None) -> None:
    if copy is not None:
        copy.remove()


def _kept_mode(previous: os.stat_result, mode: int) -> int:
    """The permissions of a file that is replaced; not of one with further names, one of which another user may have planted."""
    return previous.st_mode & 0o777 if previous.st_nlink == 1 else mode
