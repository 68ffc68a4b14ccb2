"""A path without symbolic links, following only those that no other user can have planted.

The system follows the links of a path for whoever may write where they lead: for root, anywhere. The file's own name is
followed where the link belongs to this user or to root. A directory's is followed too where it belongs to the owner of the
directory that it lies in, who decides there anyway (as Linux does itself in sticky directories, ``protected_symlinks``).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_LINKS = 40


class PathRefusedError(OSError):
    """This path may not be written; ``strerror`` says why, and the way out."""


def followed(path: str | os.PathLike[str]) -> Path:
    """The absolute path of the file that is meant, which need not exist.

    Raises:
        PathRefusedError: a link of another user stands in the way.
        OSError: a directory is missing, or may not be searched.
    """
    done, rest, links = Path("/"), _parts(absolute(path)), 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done.parent
            continue
        status = _status(done / part, is_last=not rest)
        if status is None or not stat.S_ISLNK(status.st_mode):
            done /= part
            continue
        links += 1
        if links > MAX_LINKS:
            raise PathRefusedError(errno.ELOOP, "its symbolic links lead in a circle; correct them")
        _check_link(done / part, status, is_last=not rest)
        target = os.readlink(done / part)
        done = Path("/") if os.path.isabs(target) else done
        rest += _parts(target)
    return done


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path, with its links; FileNotFoundError for a relative path where the working directory was removed."""
    text = os.fspath(path)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def trusted_owners() -> set[int]:
    """This user and root. In a user namespace root may have another number: that of the owner of ``/``."""
    return {0, os.geteuid(), os.lstat("/").st_uid}


def _parts(path: str) -> list[str]:
    """The names in a path, the first one last, so that ``pop`` takes them in order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _status(path: Path, *, is_last: bool) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        if is_last:
            return None
        raise


def _check_link(link: Path, status: os.stat_result, *, is_last: bool) -> None:
    owners = trusted_owners()
    if not is_last:
        owners.add(os.lstat(link.parent).st_uid)
    if status.st_uid not in owners:
        raise PathRefusedError(
            errno.ELOOP, f"{link} is a symbolic link of user {status.st_uid}; give the path that it leads to, or another one"
        )
