"""Renames that POSIX lacks: two names exchanged, and a name taken only if it is free."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Any

from otel_recfn.support.own_file import OwnFile

AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""As in linux/fcntl.h and linux/fs.h."""

_renameat2: Any = None
with contextlib.suppress(OSError, TypeError, AttributeError):  # not Linux, or a C library older than 2018
    _renameat2 = ctypes.CDLL(None, use_errno=True).renameat2


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; False where the system can't.

    It is preferred to a rename that replaces a file, after which ext4 begins to write to disk, each time.
    """
    return _rename(one, other, RENAME_EXCHANGE) == 0


def move_to_free_name(source: Path, target: Path) -> bool:
    """Give a file another name; False where there is a file of that name already."""
    error = _rename(source, target, RENAME_NOREPLACE)
    if error in (0, errno.EEXIST):
        return error == 0
    try:
        try:
            os.link(str(source), str(target))
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            OwnFile.create(target).close()
            os.replace(str(source), str(target))
        else:
            os.unlink(str(source))
    except FileExistsError:
        return False
    return True


def _rename(source: Path, target: Path, flags: int) -> int:
    """The number of the error, 0 for none."""
    if _renameat2 is None:
        return errno.ENOSYS
    if _renameat2(AT_FDCWD, os.fsencode(str(source)), AT_FDCWD, os.fsencode(str(target)), flags) == 0:
        return 0
    return ctypes.get_errno() or errno.EINVAL
