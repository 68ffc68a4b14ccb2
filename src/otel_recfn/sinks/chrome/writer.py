"""Writes a Chrome trace: which file a process writes, and what becomes of a batch that can't be written.

An error that may pass (a full disk, no free descriptor) costs the batches that meet it, which are counted; later batches are
written behind what the file had before. ``trace_file.py`` says what form the file has.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.chrome.process_paths import (
    cannot_write,
    check_length,
    mode_of,
    passes,
    path_of_process,
    paths_beside,
    tell_path,
)
from otel_recfn.sinks.chrome.python_ids import PythonIds
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.files.followed_path import absolute
from otel_recfn.support.own_file import FileInUseError

log = logging.getLogger("otel_recfn")

SUFFIXES = (".json.gz", ".json")


class TraceWriter:
    """Writes every batch to a Chrome trace file.

    Where the file is in use by another process, this one writes its own: ``trace.pid<pid>.json`` beside ``trace.json``.

    Args:
        path: ends in ``.json`` or ``.json.gz``; an existing file is replaced, and its permissions are kept.
        create_now: make the file at once, an empty trace; else with the first event.
        of_process: processes that are ranks or children have files of their own (``process_paths.py``).

    Raises:
        SettingError: the suffix is another one, or the file cannot be made, or not be replaced while the program runs.
    """

    def __init__(self, path: str | os.PathLike[str], *, create_now: bool = True, of_process: bool = False) -> None:
        suffix = _checked_suffix(Path(path))
        asked = self._asked_path = _as_of_now(Path(path))  # a child that changes its directory writes beside its parent
        self.path = path_of_process(asked, suffix) if of_process else asked
        """Where the trace is written."""
        self._file: ChromeTraceFile | None = None
        self._closed = self._is_failing = False
        self.failed = 0
        """Rows in batches that couldn't be written."""
        if create_now:
            self._file = self._opened_or_refused()

    def write(self, batch: Batch, *, after_gap: bool = False) -> None:
        """Append the batch's events and show them. After an error the file has the events that it had before.

        Args:
            batch: as sinks get it.
            after_gap: batches were lost since the last one: no arrow leads from there.

        Raises:
            OSError: one that will not pass, where somebody else replaced the file for instance. The batch is not counted here.
        """
        begins = len(batch.opened) and self._file is not None
        if self._closed or not (len(batch) or begins or batch.long_open is not None):
            return
        try:
            self._file = self._file or self._opened(logging.INFO)
            if after_gap:
                self._file.forget_links()
            self._file.append(batch)
            self._file.show()
        except BaseException as error:
            if self._file is not None:
                self._file.take_back()
            if not passes(error):
                raise  # whoever takes this sink out counts what it misses, this batch included
            if not self._is_failing:
                log.warning("%s: %s; events are missing there, and counted, until that has passed", self.path, repr(error))
            self._is_failing = True
            self.failed += len(batch)
        else:
            self._is_failing = False

    def close(self, lost: int = 0) -> None:
        """End the file, which says what it lacks. ``lost``: rows that never came here."""
        if self._file is not None and not self._closed:
            try:
                with contextlib.suppress(OSError):  # it stays as it was shown
                    self._file.finish(lost + self.failed)
            finally:
                self._file.close()
        self._closed = True

    def after_fork_in_child(self) -> TraceWriter:
        """One with a file of its own beside this one, made with its first event."""
        if self._file is not None and not self._closed:
            self._file.close_in_child()
        self._closed = True
        child = TraceWriter(self._asked_path, create_now=False)
        child.path = path_of_process(self._asked_path, _checked_suffix(self._asked_path), child=True)
        return child

    def _opened_or_refused(self) -> ChromeTraceFile:
        try:
            check_length(self._asked_path)
            return self._opened(logging.WARNING)
        except FileInUseError as error:
            text = f"chrome_trace={str(self._asked_path)!r} and the names beside it are being written; choose another path"
            raise SettingError(text) from error
        except OSError as error:
            raise SettingError(cannot_write("chrome_trace", self._asked_path, error, "a trace")) from error

    def _opened(self, level: int) -> ChromeTraceFile:
        """An empty trace at the first path that nobody writes. ``level``: of what the log says of it."""
        for path in itertools.chain((self.path,), paths_beside(self._asked_path, _checked_suffix(self._asked_path))):
            try:
                file = self._shown(path)
            except FileInUseError:  # another process writes it; in another container it may even have the same pid
                continue
            tell_path(self._asked_path, self.path, path, level)
            self.path = path
            return file
        raise FileInUseError(errno.EBUSY, "it is being written already, as are the names beside it", str(self._asked_path))

    def _shown(self, path: Path) -> ChromeTraceFile:
        file = ChromeTraceFile(path, mode=mode_of(self._asked_path))
        try:
            file.show()
        except BaseException:
            file.close()
            raise
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
        raise SettingError(cannot_write("chrome_trace", asked, error, "a trace")) from error
    try:
        kept = [batch for batch in batches if len(batch)]
        python_ids = PythonIds(kept)
        for batch in kept:
            file.append(batch, python_ids)
        file.finish()
    finally:
        file.close()


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
