"""Hidden files beside the file that they will become: their names, and what killed processes left of them.

A name is random, so that nobody can plant a file there, and says what the file is for: ``.trace.json.3f9c0d4be6a81277.next``.
Each file is locked as long as its process lives, so a file that can be locked was left by a process that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from otel_recfn.support.insisting import insist
from otel_recfn.support.own_file import FileInUseError, OwnFile, unlink

MAX_SEEN = 20_000
"""How many names of a directory are looked at for files that were left: that takes some 10 ms."""
ATTEMPTS = 10
LONGEST_ADDITION = len(".") + len(".0123456789abcdef.next")


def hidden_path(path: Path, kind: str = "next") -> Path:
    """A new name beside ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{kind}")


def make_hidden(path: Path) -> tuple[Path, OwnFile]:
    """A new, locked, empty file beside ``path``, for this user alone."""
    for _ in range(ATTEMPTS):
        hidden = hidden_path(path)
        file = OwnFile.create(hidden)
        try:
            file.lock()
            if file.is_at(hidden):
                return hidden, file
        except FileInUseError:  # another process that sweeps has locked it first, and will remove it
            pass
        except BaseException:
            discard(hidden, file)
            raise
        file.close()
    raise OSError(errno.ESTALE, "hidden files beside it vanish as soon as they are made")


def discard(hidden: Path, file: OwnFile) -> None:
    """Remove what ``make_hidden`` made."""
    try:
        insist(unlink, hidden)
    finally:
        file.close()


def remove_left_over(directory: Path, name: str, owners: set[int]) -> None:
    """Remove hidden files that killed processes left. Errors are ignored: the next process sweeps, too.

    Only regular files of these ``owners`` that nobody has locked, whose own file, a name that matches the regular expression
    ``name``, is there too.
    """
    pattern = re.compile(rf"\.(?P<name>{name})\.[0-9a-f]{{16}}\.(next|last)")
    with contextlib.suppress(OSError):
        for entry, whose in list(_matching(directory, pattern)):
            if os.path.lexists(str(directory / whose)):
                with contextlib.suppress(OSError):
                    _remove(directory / entry, owners)


def _matching(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    with os.scandir(str(directory)) as entries:
        for entry in islice(entries, MAX_SEEN):
            match = pattern.fullmatch(entry.name)
            if match is not None:
                yield entry.name, match["name"]


def _remove(path: Path, owners: set[int]) -> None:
    status = os.lstat(str(path))
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in owners:
        return
    file = OwnFile(path)
    try:
        if file.owner in owners and file.lock() and file.is_at(path):
            os.unlink(str(path))
    finally:
        file.close()
