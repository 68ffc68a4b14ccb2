"""The Chrome trace sink: which file a process writes, and what becomes of a batch that can't be written.

An error that may pass (a full disk, no free descriptor) costs the batches that meet it, which are counted; the file stays as it
was before, and later batches are written after it. ``trace_file.py`` says what form the file has.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from otel_recfn.batches.shared_links import SharedLinks
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY, SettingError
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.files.followed_path import PathRefusedError, absolute
from otel_recfn.sinks.files.hidden_files import LONGEST_ADDITION
from otel_recfn.support.own_file import FileInUseError

log = logging.getLogger("otel_recfn")

SUFFIXES = (".json.gz", ".json")
MAX_NAMES_BESIDE = 1000
LONGEST_BESIDE = len(".pid4194304-999")
OWN_MODE = 0o600
PASSING = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EAGAIN", "EINTR", "EBADF", "ETIMEDOUT")
    if hasattr(errno, name)
}
"""Errors after which the next batch may be written: of the disk, of limits, of descriptors that the program closed."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class ChromeTraceSink:
    """Writes every batch to a Chrome trace file.

    A process that finds the file in use by another one (a child started with the same environment) and a forked child write
    their own: ``trace.pid<pid>.json`` beside ``trace.json``.

    Args:
        path: ends in ``.json`` or ``.json.gz``; an existing file is replaced, and its permissions are kept.
        create_now: make the file at once, an empty trace; else with the first event.
        links: shared with other sinks of the capture; None for its own.

    Raises:
        SettingError: the suffix is another one, or the file cannot be made, or not be replaced while the program runs.
    """

    name = "chrome_trace"
    losses = ("failed",)

    def __init__(self, path: str | os.PathLike[str], *, create_now: bool = True, links: SharedLinks | None = None) -> None:
        _checked_suffix(Path(path))
        self._asked_path = _as_of_now(Path(path))  # a child that changes its directory writes beside its parent
        self.path = self._asked_path
        """Where the trace is written."""
        self._file: ChromeTraceFile | None = None
        self._shared_links, self._links = links, links
        """What the file is made with: the shared links; None once a batch was lost here, because they may lead into it."""
        self._closed = False
        self._failures = 0
        self._retry_at = 0.0
        self._counts = {"events_written": 0, "failed": 0}
        self._bytes = 0
        self._unsettled = False
        """A batch is being written, or what is left of it has still to be taken back."""
        if create_now:
            self._file = self._opened_or_refused()

    def write(self, batch: Batch) -> None:
        """Append the batch's events and show them. After any error the file is what it was before.

        Raises:
            OSError: one that will not pass, where somebody else replaced the file for instance. The batch is not counted here.
        """
        if not len(batch) or self._closed:
            return
        # Both now: where there is no memory later, one of them can still be stored.
        written, failed = self._with("events_written", len(batch)), self._with("failed", len(batch))
        if self._failures and time.monotonic() < self._retry_at:
            self._counts = failed
            return
        try:
            self._take_back()
            self._write(batch)
            self._counts, self._failures = written, 0
        except BaseException as error:  # also a signal handler's, in the program's thread that flushes
            counts = written if self._take_back() else failed
            if _passes(error):
                self._pause(error)
            elif isinstance(error, Exception):
                raise  # whoever takes this sink out counts what it misses, this batch included
            self._counts = counts
            if not isinstance(error, Exception):
                raise

    def write_open(self, ranges: Batch) -> None:
        """Show ranges that are open for long; those of the last call that aren't among them no more.

        Raises:
            OSError: as ``write``.
        """
        if self._closed or (self._failures and time.monotonic() < self._retry_at):
            return
        try:
            self._take_back()
            self._write_open(ranges)
            self._failures = 0
        except BaseException as error:
            self._take_back()
            if not _passes(error):
                raise
            self._pause(error)

    def flush(self, timeout_s: float) -> bool:
        """Nothing to wait for: what was written is in the file."""
        return True

    def close(self, timeout_s: float) -> None:
        """Close the file; it is whole already."""
        if self._file is not None and not self._closed:
            self._file.close()
        self._closed = True

    def counters(self) -> Mapping[str, int]:
        """How many events and arrows from forward to backward are in the file, its size, how many events were in batches that
        failed, and how often the file, its name or a descriptor was taken away and made again."""
        flows, reopened = (self._file.flows, self._file.renewed) if self._file is not None else (0, 0)
        own = {"flows_written": flows, "bytes_written": self._bytes, "reopened": reopened}
        return {**self._counts, **own}

    def after_fork_in_child(self) -> ChromeTraceSink:
        """A sink with a file of its own beside this one, made with its first event."""
        if self._file is not None and not self._closed:
            self._file.close_in_child()
        self._closed = True
        if self._shared_links is not None:
            self._shared_links.start_empty()
        child = ChromeTraceSink(self._asked_path, create_now=False, links=self._shared_links)
        child.path = _path_of_process(self._asked_path)
        return child

    def _write(self, batch: Batch) -> None:
        if self._file is None:
            self._file = self._opened()
        self._unsettled = True
        self._file.append(batch)
        self._bytes = self._file.show()
        self._unsettled = False

    def _write_open(self, ranges: Batch) -> None:
        if self._file is None:
            self._file = self._opened()
        self._unsettled = True
        self._file.set_open(ranges)
        self._bytes = self._file.show()
        self._unsettled = False

    def _take_back(self) -> bool:
        """What was written of a batch that failed. Whether the file shows it all the same."""
        if not self._unsettled or self._file is None:
            return False
        shown = not self._file.take_back()
        self._unsettled = False
        return shown

    def _with(self, name: str, more: int) -> dict[str, int]:
        counts = dict(self._counts)
        counts[name] += more
        return counts

    def _pause(self, error: BaseException) -> None:
        """After a first failure the next batch is tried at once; after further ones there are ever longer pauses."""
        self._links = None
        if not self._failures:
            log.warning("%s: %s; events are missing there, and counted, until that has passed", self.path, repr(error))
        pause = FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 10) if self._failures else 0.0
        self._retry_at = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
        self._failures += 1

    def _opened_or_refused(self) -> ChromeTraceFile:
        try:
            _check_length(self._asked_path)
            return self._opened()
        except FileInUseError as error:
            text = f"chrome_trace={str(self._asked_path)!r} and the names beside it are being written; choose another path"
            raise SettingError(text) from error
        except OSError as error:
            raise SettingError(_cannot_write(self._asked_path, error)) from error

    def _opened(self) -> ChromeTraceFile:
        """An empty trace at the first path that nobody writes."""
        for path in itertools.chain((self.path,), _paths_beside(self._asked_path)):
            try:
                file = self._shown(path)
            except FileInUseError:  # another process writes it; in another container it may even have the same pid
                continue
            if path != self.path:
                log.warning("%s is being written already; process %d writes %s", self.path, os.getpid(), path)
            self.path = path
            return file
        raise FileInUseError(errno.EBUSY, "it is being written already, as are the names beside it", str(self._asked_path))

    def _shown(self, path: Path) -> ChromeTraceFile:
        file = ChromeTraceFile(path, family=_family(self._asked_path), mode=_mode_of(self._asked_path), links=self._links)
        try:
            file.show()
        except BaseException:
            file.close()
            raise
        file.sweep()
        return file


def export(batches: Iterable[Batch], path: str | os.PathLike[str]) -> None:
    """Write a trace in one go; an existing file is replaced when all is written.

    Raises:
        SettingError: another suffix, or the file can't be made.
        OSError: it can't be written to the end; the file is what it was before.
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
        file.show()
    finally:
        file.close()


def _passes(error: BaseException) -> bool:
    """Whether the next batch may be written."""
    return error.errno in PASSING if isinstance(error, OSError) else isinstance(error, OUT_OF_MEMORY)


def _checked_suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    name = path.stem.lstrip(".") or "trace"
    raise SettingError(f"chrome_trace={str(path)!r} is no name that ends in .json or .json.gz; name it {name}.json.gz")


def _as_of_now(path: Path) -> Path:
    try:
        return Path(absolute(path))
    except OSError as error:
        raise SettingError(f"chrome_trace={str(path)!r}: the working directory was removed; give an absolute path") from error


def _check_length(path: Path) -> None:
    """Raise ENAMETOOLONG where hidden files, or those of other processes, would get too long a name."""
    try:
        limit = os.pathconf(str(path.parent), "PC_NAME_MAX")
    except OSError:  # there is no such directory, which is found out later
        return
    room = limit - LONGEST_ADDITION - LONGEST_BESIDE
    if len(os.fsencode(path.name)) > room:
        raise PathRefusedError(errno.ENAMETOOLONG, f"its name is longer than {room} bytes; shorten it")


def _path_of_process(path: Path) -> Path:
    suffix = _checked_suffix(path)
    return path.with_name(f"{path.name.removesuffix(suffix)}.pid{os.getpid()}{suffix}")


def _paths_beside(path: Path) -> Iterator[Path]:
    own = _path_of_process(path)
    suffix = _checked_suffix(path)
    yield own
    for number in range(2, MAX_NAMES_BESIDE):
        yield own.with_name(f"{own.name.removesuffix(suffix)}-{number}{suffix}")


def _family(path: Path) -> str:
    """The names of the traces of all processes, as a regular expression."""
    suffix = _checked_suffix(path)
    return rf"{re.escape(path.name.removesuffix(suffix))}(?:\.pid\d+(?:-\d+)?)?{re.escape(suffix)}"


def _mode_of(path: Path) -> int:
    """The permissions of the file that the user has named, if it is the user's own: other processes' traces get them too."""
    try:
        status = os.stat(str(path))
    except OSError:
        return OWN_MODE
    return stat.S_IMODE(status.st_mode) & 0o777 if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) else OWN_MODE


def _cannot_write(path: Path, error: OSError) -> str:
    if isinstance(error, PathRefusedError):
        return f"chrome_trace={str(path)!r} cannot be written: {error.strerror}"
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        return f"chrome_trace={str(path)!r}: there is no directory {str(folder)!r}; create it or choose another path"
    if error.errno == errno.EBUSY:
        return f"chrome_trace={str(path)!r} cannot be replaced, it is mounted there by itself; mount its directory instead"
    return (
        f"chrome_trace={str(path)!r} cannot be written ({error.strerror}); choose a path that this user can write, in a "
        "directory where it can make files (a trace is written beside its name, then renamed)"
    )
