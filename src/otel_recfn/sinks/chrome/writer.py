"""The writer of a Chrome trace: which file a process writes, and what happens to a batch that can't be written.

    the launched program   trace.json                     where another program writes that: trace.pid123.json
    a rank                 trace.rank0.json               started again: trace.rank0.restart1.json
    a child, a worker      trace.pid123.json              of a rank: trace.rank0.pid123.json

So processes that run one after another don't replace each other's files. A name in use gets a number: -2, -3, ...

An error that may pass (a full disk, no free descriptor) costs the batches that meet it, which are counted; later batches are
written behind what the file had before. ``trace_file.py`` says what form the file has.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.growing_file import FileInUseError
from otel_recfn.support.processes import addition

log = logging.getLogger("otel_recfn")

SUFFIXES = (".json.gz", ".json")
MAX_NAMES_BESIDE = 1000
PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE}
PASSING |= {errno.ENOMEM, errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}
"""Errors after which writing may work again: of the disk, and of limits."""


class TraceWriter:
    """A writer of batches into a Chrome trace file.

    Args:
        path: ends in ``.json`` or ``.json.gz``; an existing file is replaced, and its permissions are kept.
        create_now: make the file at once, an empty trace; else with the first event.
        of_process: processes that are ranks or children have files of their own.

    Raises:
        SettingError: the suffix is another one, or the file can't be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create_now: bool = True, of_process: bool = False
    ) -> None:
        self._suffix = _checked_suffix(Path(path))
        try:
            self._asked_path = Path(
                path
            ).absolute()  # so that a child that changes its directory writes beside its parent
        except OSError as error:
            text = f"chrome_trace={str(path)!r}: the working directory was removed; give an absolute path"
            raise SettingError(text) from error
        self.path = self._name_with(addition()) if of_process else self._asked_path
        """The path of the trace."""
        self._file: ChromeTraceFile | None = None
        self._closed = self._is_failing = False
        self.failed = 0
        """The rows of batches that couldn't be written."""
        if create_now:
            self._file = self._opened_or_refused()

    def write(self, batch: Batch) -> None:
        """Append the batch's events and show them. After an error the file has the events that it had before.

        Raises:
            OSError: one that will not pass. The batch is not counted here.
        """
        begins = len(batch.opened) and self._file is not None
        if self._closed or not (len(batch) or begins or batch.long_open is not None):
            return
        try:
            self._file = self._file or self._opened(logging.INFO)
            self._file.append(batch)
            self._file.show()
        except BaseException as error:
            if self._file is not None:
                self._file.take_back()
            if not (isinstance(error, OSError) and error.errno in PASSING):
                raise  # the session counts what a sink that it removes misses, this batch included
            if not self._is_failing:
                log.warning(
                    "%s: %s; events are missing there, and counted, until that has passed",
                    self.path,
                    repr(error),
                )
            self._is_failing = True
            self.failed += len(batch)
        else:
            self._is_failing = False

    def close(self, lost: int = 0) -> None:
        """End the file. ``lost`` is the number of rows that never came here, which the file reports."""
        if self._file is not None and not self._closed:
            try:
                with contextlib.suppress(OSError):  # it stays as it was shown
                    self._file.finish(lost + self.failed)
            finally:
                self._file.close()
        self._closed = True

    def after_fork_in_child(self) -> TraceWriter:
        """A writer with a file of its own beside this one, made with its first event."""
        if self._file is not None and not self._closed:
            self._file.close_in_child()
        self._closed = True
        child = TraceWriter(self._asked_path, create_now=False)
        child.path = self._name_with(addition(True))
        return child

    def _opened_or_refused(self) -> ChromeTraceFile:
        try:
            return self._opened(logging.WARNING)
        except FileInUseError as error:
            text = f"chrome_trace={str(self._asked_path)!r} and the names beside it are being written; choose another path"
            raise SettingError(text) from error
        except OSError as error:
            raise SettingError(_cannot_write(self._asked_path, error)) from error

    def _opened(self, level: int) -> ChromeTraceFile:
        """An empty trace at the first path that nobody writes. ``level`` is that of its log message."""
        for path in chain((self.path,), self._paths_beside()):
            try:
                file = ChromeTraceFile(path)
            except (
                FileInUseError
            ):  # another process writes it; in another container it may even have the same pid
                continue
            if path != self.path:
                log.warning(
                    "%s is being written already; process %d writes %s",
                    self.path,
                    os.getpid(),
                    path,
                )
            elif path != self._asked_path:
                log.log(level, "of %s, process %d writes %s", self._asked_path, os.getpid(), path)
            self.path = path
            return file
        raise FileInUseError(
            errno.EBUSY,
            "it is being written already, as are the names beside it",
            str(self._asked_path),
        )

    def _paths_beside(self) -> Iterator[Path]:
        """The names that this process may use while its own is being written."""
        own = addition()
        beside = own if ".pid" in own else f"{own}.pid{os.getpid()}"
        yield self._name_with(beside)
        for number in range(2, MAX_NAMES_BESIDE):
            yield self._name_with(f"{beside}-{number}")

    def _name_with(self, added: str) -> Path:
        return self._asked_path.with_name(
            f"{self._asked_path.name.removesuffix(self._suffix)}{added}{self._suffix}"
        )


def export(batches: Iterable[Batch], path: str | os.PathLike[str]) -> None:
    """Write a trace in one go; an existing file is replaced.

    Raises:
        SettingError: another suffix, or the file can't be written.
        OSError: it can't be written to the end, and is an empty trace.
    """
    asked = Path(path)
    _checked_suffix(asked)
    try:
        file = ChromeTraceFile(asked)
    except OSError as error:
        raise SettingError(_cannot_write(asked, error)) from error
    try:
        for batch in batches:
            if len(batch):
                file.append(batch)
        file.finish()
    finally:
        file.close()


def _checked_suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    name = path.stem.lstrip(".") or "trace"
    raise SettingError(
        f"chrome_trace={str(path)!r} is no name that ends in .json or .json.gz; name it {name}.json.gz"
    )


def _cannot_write(path: Path, error: OSError) -> str:
    """The reason why a file can't be written, and the way out."""
    named = f"chrome_trace={str(path)!r}"
    folder = Path(os.path.realpath(path)).parent
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not folder.is_dir():
        return f"{named}: there is no directory {str(folder)!r}; create it or choose another path"
    return f"{named} cannot be written ({error.strerror}); choose a path that this user can write"
