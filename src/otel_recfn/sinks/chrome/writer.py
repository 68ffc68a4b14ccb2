"""The writer of a Chrome trace: batches into a file, and what happens to a batch that can't be
written.

    a full disk, no free descriptor     the batches that meet it are lost, and counted; later ones
                                        are written behind those that the file had before
    the file is deleted or overwritten  its batches are lost, and counted; later ones are in a new
                                        file
    any other error                     is raised

``trace_paths.py`` says which file it is, ``trace_file.py`` what form that has.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from itertools import chain
from pathlib import Path

from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.chrome.trace_paths import TracePaths, cannot_write
from otel_recfn.sinks.growing_file import FileInUseError
from otel_recfn.support.logs import log

PASSING = {
    errno.ENOENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
    errno.EAGAIN,
    errno.EINTR,
    errno.ETIMEDOUT,
}
"""Errors after which writing may work again: of the disk, of limits, and of a folder that is
made anew.
"""


class TraceWriter:
    """A writer of batches into a Chrome trace file.

    Args:
        path: ends in ``.json`` or ``.json.gz``; an existing file is replaced, and its permissions
            are kept.
        create_now: make the file at once, an empty trace; otherwise with the first event.
        per_process: processes that are ranks or children have files of their own.

    Raises:
        SettingError: the suffix is another one, or the file can't be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create_now: bool = True, per_process: bool = False
    ) -> None:
        self._paths = TracePaths(path)
        self.path = self._paths.process_path() if per_process else self._paths.asked
        """The path of the trace."""
        self._file: ChromeTraceFile | None = None
        self._closed = False
        self._is_failing = False
        self._lost_a_file = False
        """Whether a file was deleted or overwritten. A file that has its name now isn't ours."""
        self._rows = 0
        """The rows in the file."""
        self.failed = 0
        """The rows that couldn't be written, or were in a file that was deleted or overwritten."""
        if create_now:
            self._file = self._opened_or_refused()

    def write(self, batch: Batch) -> None:
        """Append the batch's events and show them.

        After an error the file has the events that it had before.

        Raises:
            OSError: one that will not pass. The batch is not counted here.
        """
        begins = (len(batch.opened) or batch.spans or batch.samples) and self._file is not None
        if self._closed or not (len(batch) or begins or batch.steps or batch.long_open is not None):
            return
        self.check()
        try:
            self._file = self._file or self._open_trace(logging.INFO)
            self._file.append(batch)
            self._file.show()
        except BaseException as error:
            if self._file is not None:
                self._file.take_back()
            if not (isinstance(error, OSError) and error.errno in PASSING):
                raise  # the session counts what a sink that it removes misses, this batch included
            self._log_failing(error)
            self.failed += len(batch)
        else:
            self._is_failing = False
            self._rows += len(batch)

    def check(self) -> None:
        """Continue in a new file if the one that is written was deleted or overwritten."""
        if self._closed or self._file is None or self._file.is_intact():
            return
        before = self.path
        lost = self._rows
        is_first = not self._lost_a_file
        self._file.leave()
        self._file = None
        self._lost_a_file = True
        self.failed += lost
        self._rows = 0
        try:
            self._file = self._open_trace(logging.DEBUG)
        except OSError as error:  # the next batch tries again
            self._log_failing(error)
        if is_first:
            log.warning(
                "%s was deleted or overwritten while it was written: its %d events are lost, and"
                " counted; later ones are in %s",
                before,
                lost,
                self.path,
            )

    def _log_failing(self, error: OSError) -> None:
        if not self._is_failing:
            log.warning(
                "%s: %s; events are missing there, and counted, until that has passed",
                self.path,
                repr(error),
            )
        self._is_failing = True

    def close(self, lost: int = 0) -> None:
        """End the file.

        ``lost`` is the number of rows that never came here, which the file reports.
        """
        if not self._closed:
            try:
                self.check()
                if self._file is not None:
                    with contextlib.suppress(OSError):  # it stays as it was shown
                        self._file.finish(lost + self.failed)
            finally:
                if self._file is not None:
                    self._file.close()
        self._closed = True

    def after_fork_in_child(self) -> TraceWriter:
        """A writer with a file of its own beside this one, made with its first event."""
        if self._file is not None and not self._closed:
            self._file.leave()
        self._closed = True
        child = TraceWriter(self._paths.asked, create_now=False)
        child.path = self._paths.process_path(is_child=True)
        return child

    def _opened_or_refused(self) -> ChromeTraceFile:
        try:
            return self._open_trace(logging.WARNING)
        except FileInUseError as error:
            raise SettingError(
                f"chrome_trace={str(self._paths.asked)!r} and the names beside it are being"
                " written; choose another path"
            ) from error
        except OSError as error:
            raise SettingError(cannot_write(self._paths.asked, error)) from error

    def _open_trace(self, level: int) -> ChromeTraceFile:
        """An empty trace at the first path that no process writes.

        ``level`` is that of its log message.
        """
        for path in chain((self.path,), self._paths.numbered_paths()):
            try:
                file = self._make_trace(path)
            except (FileInUseError, FileExistsError):
                # Another process writes it (in another container it may even have the same pid), or
                # has made it.
                continue
            if path != self.path and not self._lost_a_file:
                log.warning(
                    "%s is being written already; process %d writes %s",
                    self.path,
                    os.getpid(),
                    path,
                )
            elif path != self._paths.asked:
                log.log(level, "of %s, process %d writes %s", self._paths.asked, os.getpid(), path)
            self.path = path
            return file
        raise FileInUseError(
            errno.EBUSY,
            "it is in use by another process, and so are its numbered alternatives",
            str(self._paths.asked),
        )

    def _make_trace(self, path: Path) -> ChromeTraceFile:
        """An empty trace, which replaces a file; not one that has replaced ours."""
        if self._lost_a_file:
            return ChromeTraceFile(Path(os.path.realpath(path)), replace=False)
        return ChromeTraceFile(path, replace=True)
