"""Requests to a file, each as a line of OTLP JSON. A kill may cut the last line."""

from __future__ import annotations

import errno
import itertools
import logging
from pathlib import Path

from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.files.followed_path import absolute
from otel_recfn.sinks.files.growing_file import GrowingFile
from otel_recfn.sinks.files.process_paths import (
    cannot_write,
    check_length,
    mode_of,
    passes,
    path_of_process,
    paths_beside,
    tell_path,
)
from otel_recfn.sinks.otlp.json_lines import json_line
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.support.own_file import FileInUseError

PREFIX = "file:"


class FileTransport:
    """Writes a file of this process's own (``process_paths.py``).

    Args:
        asked: the path that was asked for.
        level: of what the log says of the one that is written.

    Raises:
        OSError: it can't be written there.
    """

    concurrent = 1
    encoding = ""
    hidden: tuple[str, ...] = ()

    def __init__(self, asked: Path, level: int) -> None:
        self._file = self._opened(asked, level)
        self.where = str(self._file.path)

    def send(self, body: bytes) -> Outcome:
        """Append a line and show it."""
        line = json_line(body)
        try:
            self._file.append(line)
            self._file.show(b"")
        except BaseException as error:
            self._file.take_back()
            if not isinstance(error, OSError):
                raise
            return Outcome(Verdict.AGAIN if passes(error) else Verdict.REFUSED, repr(error))
        return Outcome(Verdict.TAKEN)

    def close(self) -> None:
        """The file has what was sent."""
        self._file.close()

    def close_in_child(self) -> None:
        """The file belongs to the parent."""
        self._file.close_in_child()

    def _opened(self, asked: Path, level: int) -> GrowingFile:
        suffix = asked.suffix
        first = path_of_process(asked, suffix)
        for path in itertools.chain((first,), paths_beside(asked, suffix)):
            try:
                file = self._shown(path, asked)
            except FileInUseError:  # another process writes it
                continue
            tell_path(asked, first, path, level)
            return file
        raise FileInUseError(errno.EBUSY, "it is being written already, as are the names beside it", str(asked))

    def _shown(self, path: Path, asked: Path) -> GrowingFile:
        file = GrowingFile(path, mode=mode_of(asked))
        try:
            file.show(b"")
        except BaseException:
            file.close()
            raise
        return file


class OpensFile:
    """Opens the file of the setting ``file:PATH``: at once where the user waits, in a forked child with the first request.

    Args:
        asked: the path, absolute.
        now: in this process, at once.
    """

    def __init__(self, asked: Path, now: bool = True) -> None:
        self._asked = asked
        self._made = FileTransport(asked, logging.WARNING) if now else None

    def __call__(self) -> FileTransport:
        """What is open, or a file of this process's own."""
        if self._made is None:
            self._made = FileTransport(self._asked, logging.INFO)
        return self._made

    def close(self) -> None:
        """What nothing was written to."""
        if self._made is not None:
            self._made.close()

    def after_fork_in_child(self) -> OpensFile:
        """Its parent's descriptors are closed."""
        if self._made is not None:
            self._made.close_in_child()
        return OpensFile(self._asked, now=False)


def opens_file(setting: str, now: bool = True) -> OpensFile:
    """For a value of the setting ``span_exporter``; ``now``: see OpensFile.

    Raises:
        SettingError: the file can't be written.
    """
    path = Path(setting.removeprefix(PREFIX))
    try:
        asked = Path(absolute(path))
        check_length(asked)
        return OpensFile(asked, now)
    except FileInUseError as error:
        text = f"span_exporter={setting!r}: the file and the names beside it are being written; choose another path"
        raise SettingError(text) from error
    except OSError as error:
        raise SettingError(cannot_write("span_exporter", path, error, "the file")) from error
