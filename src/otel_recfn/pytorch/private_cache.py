"""The directory that compiled observers are kept in, and why it may be trusted.

What lies here is loaded into the process, so nobody but its owner may be able to put something here: the directory is a real
one, it and every directory above it belong to this user or to root, and none is writable by others (a sticky directory such
as /tmp is fine above it). Files are checked likewise, right before they are loaded.

An image's build step may prepare the directory as root; then other users read it and can't write.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from otel_recfn.model.errors import CacheUnsafe

ENVIRONMENT_VARIABLE = "OTEL_RECFN_CACHE_DIR"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def chosen_directory() -> Path:
    """Where the cache is or would be; touches nothing."""
    explicit = os.environ.get(ENVIRONMENT_VARIABLE)
    if explicit:
        return _at_home(explicit)
    return _at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "otel-recfn"


def _at_home(path: str) -> Path:
    """The absolute path. In a container the user may have neither a HOME nor a name, and is at home in / as far as we know."""
    expanded = os.path.expanduser(path)
    return Path(f"/{expanded[2:]}" if expanded.split("/")[0] == "~" else expanded).absolute()


def open_directory() -> Path:
    """The cache directory, made where it was missing (0700), and checked.

    Raises:
        CacheUnsafe: it can't be made, or somebody else could write in it.
    """
    directory = chosen_directory()
    try:
        _make(directory)
        directory = directory.parent.resolve() / directory.name
        check_directory(directory)
        _check_readable(directory)
    except OSError as error:
        raise CacheUnsafe(f"the cache {directory} cannot be used: {error}; {_way_out()}") from error
    return directory


def check_directory(directory: Path) -> None:
    """Raise CacheUnsafe unless only this user or root can put files into ``directory`` (whose parent is resolved already)."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise CacheUnsafe(f"the cache {directory} is not a real directory; {_way_out()}")
    _check_owner_and_mode(directory, status, "the cache")
    for ancestor in directory.parents:
        status = os.lstat(ancestor)
        if status.st_mode & stat.S_ISVTX:
            _check_owner(ancestor, status, "a directory above the cache")
        else:
            _check_owner_and_mode(ancestor, status, "a directory above the cache")


def _check_readable(directory: Path) -> None:
    """Else it would seem to be empty."""
    try:
        os.listdir(directory)
    except PermissionError:
        user, way_out = os.geteuid(), f"chmod 755 {directory} where it was made, or {_way_out()}"
        raise CacheUnsafe(f"the cache {directory} cannot be read by user {user}; {way_out}") from None


def check_file(path: Path) -> None:
    """Raise CacheUnsafe unless ``path`` is a regular file that only this user or root could have written."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise CacheUnsafe(f"the cached file {path} cannot be read: {error}; {_way_out()}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CacheUnsafe(f"the cached file {path} is not a regular file; remove it, or {_way_out()}")
    _check_owner_and_mode(path, status, "the cached file")


def _make(directory: Path) -> None:
    """mkdir -p, every new directory 0700 whatever the umask."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:  # another process was faster; the checks decide about what it made
            continue


def _check_owner_and_mode(path: Path, status: os.stat_result, what: str) -> None:
    _check_owner(path, status, what)
    if status.st_mode & OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise CacheUnsafe(f"{what}, {path}, is writable by others (mode {mode:o}); chmod go-w {path}, or {_way_out()}")


def _check_owner(path: Path, status: os.stat_result, what: str) -> None:
    # Whoever owns / decides everything here anyway; in a user namespace root's files show another number.
    trusted = {0, os.geteuid(), os.lstat("/").st_uid}
    if status.st_uid not in trusted:
        raise CacheUnsafe(f"{what}, {path}, belongs to user {status.st_uid}, not to you or root; {_way_out()}")


def _way_out() -> str:
    return f"set {ENVIRONMENT_VARIABLE} to a directory of your own that nobody else can write to"
