"""Files that each process of a program writes for itself: their names, and whose they are.

    the launched program   trace.json                     where another program writes that: trace.pid123.json
    a rank                 trace.rank0.json               started again: trace.rank0.restart1.json
    a child, a worker      trace.pid123.json              of a rank: trace.rank0.pid123.json

So processes that run one after another don't replace each other's files. A name in use gets a number: -2, -3, ...
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from otel_recfn.sinks.files.followed_path import PathRefusedError, followed
from otel_recfn.sinks.files.growing_file import LONGEST_ADDITION
from otel_recfn.support.processes import LONGEST_ADDITION as LONGEST_OF_A_PROCESS
from otel_recfn.support.processes import addition

log = logging.getLogger("otel_recfn")

MAX_NAMES_BESIDE = 1000
LONGEST_BESIDE = LONGEST_OF_A_PROCESS + len("-999")
OWN_MODE = 0o600
PASSING = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EAGAIN", "EINTR", "ETIMEDOUT")
    if hasattr(errno, name)
}
"""Errors after which one may write again: of the disk, and of limits."""


def passes(error: BaseException) -> bool:
    """Whether one may write again."""
    return isinstance(error, OSError) and error.errno in PASSING


def check_length(path: Path) -> None:
    """Raise ENAMETOOLONG where hidden files, or those of other processes, would get too long a name."""
    try:
        limit = os.pathconf(path.parent, "PC_NAME_MAX")
    except OSError:  # there is no such directory, which is found out later
        return
    room = limit - LONGEST_ADDITION - LONGEST_BESIDE
    if len(os.fsencode(path.name)) > room:
        raise PathRefusedError(errno.ENAMETOOLONG, f"its name is longer than {room} bytes; shorten it")


def path_of_process(path: Path, suffix: str, child: bool = False) -> Path:
    """Where this process writes what is to go to ``path``, which ends in ``suffix``. ``child``: it is known to be one."""
    return _with(path, suffix, addition(child))


def paths_beside(path: Path, suffix: str) -> Iterator[Path]:
    """The names that this process may use where that one is being written."""
    own = addition()
    beside = own if ".pid" in own else f"{own}.pid{os.getpid()}"
    yield _with(path, suffix, beside)
    for number in range(2, MAX_NAMES_BESIDE):
        yield _with(path, suffix, f"{beside}-{number}")


def _with(path: Path, suffix: str, added: str) -> Path:
    return path.with_name(f"{path.name.removesuffix(suffix)}{added}{suffix}")


def tell_path(asked: Path, expected: Path, path: Path, level: int) -> None:
    """Name the file that this process writes in the log, where it isn't the one that was asked for.

    Args:
        asked: by the user.
        expected: the name that this process has.
        path: the one that it writes.
        level: of the log, where the name is as expected.
    """
    if path != expected:
        log.warning("%s is being written already; process %d writes %s", expected, os.getpid(), path)
    elif path != asked:
        log.log(level, "of %s, process %d writes %s", asked, os.getpid(), path)


def mode_of(path: Path) -> int:
    """The permissions of the file that the user has named, if it is the user's own: other processes' files get them too.

    Not where somebody else may have put a link to another file of the user's there.
    """
    try:
        status = os.lstat(followed(path))
    except OSError:
        return OWN_MODE
    is_own = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return stat.S_IMODE(status.st_mode) & 0o777 if is_own else OWN_MODE


def cannot_write(setting: str, path: Path, error: OSError, what: str) -> str:
    """Why a file can't be written, and the way out.

    Args:
        setting: what named it.
        path: the file.
        error: why.
        what: the file is.
    """
    named = f"{setting}={str(path)!r}"
    if isinstance(error, PathRefusedError):
        return f"{named} cannot be written: {error.strerror}"
    folder = Path(os.path.realpath(path)).parent
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(folder):
        return f"{named}: there is no directory {str(folder)!r}; create it or choose another path"
    if error.errno == errno.EBUSY:
        return f"{named} cannot be replaced, it is mounted there by itself; mount its directory instead"
    return (
        f"{named} cannot be written ({error.strerror}); choose a path that this user can write, in a "
        f"directory where it can make files ({what} is written beside its name, then renamed)"
    )
