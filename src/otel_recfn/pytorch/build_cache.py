"""Finished builds in a private directory: found by their key, loaded only if they are whole and
nobody else can have made them.

A library's name ends with a checksum of its content, so that the two can't be out of step. A file
that was cut short or filled with zeros, by a full disk, a crash or a copy, would end the process by
a signal while it is loaded. So it is compared with the checksum before each use.

What lies here is loaded into the process, so nobody but its owner may be able to put something
here: the directory is a real one, it and every directory above it belong to this user or to root,
and none is writable by others (a sticky directory such as /tmp is fine above it). Files are checked
likewise, right before they are loaded. An image's build step may prepare the directory as root;
then other users read it and can't write.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from otel_recfn.errors import CacheUnsafe
from otel_recfn.support.logs import log

ENVIRONMENT_VARIABLE = "OTEL_RECFN_CACHE_DIR"
WAY_OUT = f"set {ENVIRONMENT_VARIABLE} to a directory of your own that nobody else can write to"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
MAX_BUILDS = 5
CHECKSUM_DIGITS = 32
UNFINISHED = "building-"
LOCK_POLL_SECONDS = 0.05


def find(cache: Path, build: str) -> Path | None:
    """The library of this name and key, ready to load; CacheUnsafe if somebody else could have
    written it.
    """
    for path in _cached_builds(cache, build):
        check_file(path)
        if not _is_whole(path):
            log.warning("the cached %s is damaged and is not loaded; it is built again", path)
            continue
        # Another user's; only the order of pruning depends on it.
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    return None


def keep(output: Path, cache: Path, build: str, library: str) -> Path:
    """Move a finished library into the cache, in place of earlier ones of its key, and return its
    path there.

    Of the library, the builds that were used last are kept; one that another process has loaded
    stays loaded there.
    """
    output.chmod(0o755)  # the compiler follows the umask, which may let the group write
    target = cache / f"{build}-{_checksum(output)}.so"
    os.replace(output, target)
    for path in _cached_builds(cache, build):
        if path != target:
            path.unlink(missing_ok=True)
    check_file(target)
    # Another process prunes too, or they are another user's; what is left does no harm.
    with contextlib.suppress(OSError):
        built = sorted(
            cache.glob(f"{library}-*.so"), key=lambda path: path.lstat().st_mtime_ns, reverse=True
        )
        for path in built[MAX_BUILDS:]:
            path.unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def workshop(cache: Path, wait_s: float) -> Iterator[Path]:
    """A temporary directory to compile in.

    Of several processes that start at once, one compiles there, and the others wait and find what
    it has built. After ``wait_s`` seconds they go ahead: compiling twice is harmless.
    """
    lock = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if _lock_within(lock, wait_s):
            for left in cache.glob(f"{UNFINISHED}*"):  # left by killed compilers
                if not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=cache) as directory:
            yield Path(directory)
    finally:
        with contextlib.suppress(OSError):
            # At once, even if a forked child still holds the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _lock_within(lock: int, wait_s: float) -> bool:
    """Whether nobody else compiles, as far as can be known: there are file systems without
    locks.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                log.warning(
                    "waited %.0f s for the build cache's lock; building without the cache", wait_s
                )
                return False
            time.sleep(LOCK_POLL_SECONDS)
        except OSError:
            return False


def _cached_builds(cache: Path, build: str) -> list[Path]:
    return sorted(cache.glob(f"{build}-{'[0-9a-f]' * CHECKSUM_DIGITS}.so"))


def _is_whole(path: Path) -> bool:
    try:
        return path.stem.endswith(f"-{_checksum(path)}")
    except OSError:  # a part of it can't be read
        return False


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:CHECKSUM_DIGITS]


# --- the directory


def chosen_directory() -> Path:
    """The directory where the cache is or would be. Touches nothing."""
    explicit = os.environ.get(ENVIRONMENT_VARIABLE)
    if explicit:
        return _expanded(explicit)
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "otel-recfn"


def _expanded(path: str) -> Path:
    """The absolute path.

    In a container the user may have neither a HOME nor a name; then / is the home.
    """
    expanded = os.path.expanduser(path)
    return Path(f"/{expanded[2:]}" if expanded.split("/")[0] == "~" else expanded).absolute()


def open_directory() -> Path:
    """The cache directory, made if missing; CacheUnsafe if it can't be made, or if somebody else
    could write in it.
    """
    directory = chosen_directory()
    try:
        _make(directory)
        directory = directory.parent.resolve() / directory.name
        _check_directory(directory)
    except OSError as error:
        raise CacheUnsafe(f"the cache {directory} cannot be used: {error}; {WAY_OUT}") from error
    try:
        os.listdir(directory)  # else it would seem to be empty
    except PermissionError:
        user = os.geteuid()
        way_out = f"chmod 755 {directory} where it was made, or {WAY_OUT}"
        raise CacheUnsafe(
            f"the cache {directory} cannot be read by user {user}; {way_out}"
        ) from None
    return directory


def _make(directory: Path) -> None:
    """Make directories as ``mkdir -p`` does, each 0700 whatever the umask."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    for path in reversed(missing):
        # Another process was faster; the checks decide about what it made.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)


def _check_directory(directory: Path) -> None:
    """Raise CacheUnsafe unless only this user or root can put files into ``directory``, whose
    parent is resolved.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise CacheUnsafe(f"the cache {directory} is not a real directory; {WAY_OUT}")
    _check(directory, status, "the cache")
    for ancestor in directory.parents:
        status = os.lstat(ancestor)
        _check(
            ancestor,
            status,
            "a directory above the cache",
            others_may_write=bool(status.st_mode & stat.S_ISVTX),
        )


def check_file(path: Path) -> None:
    """Raise CacheUnsafe unless ``path`` is a regular file that only this user or root could have
    written.
    """
    try:
        status = os.lstat(path)
    except OSError as error:
        raise CacheUnsafe(f"the cached file {path} cannot be read: {error}; {WAY_OUT}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CacheUnsafe(f"the cached file {path} is not a regular file; remove it, or {WAY_OUT}")
    _check(path, status, "the cached file")


def _check(
    path: Path, status: os.stat_result, what: str, *, others_may_write: bool = False
) -> None:
    # The owner of / decides everything anyway; in a user namespace root's files show another
    # number.
    if status.st_uid not in {0, os.geteuid(), os.lstat("/").st_uid}:
        raise CacheUnsafe(
            f"{what}, {path}, belongs to user {status.st_uid}, not to you or root; {WAY_OUT}"
        )
    if status.st_mode & OTHERS_MAY_WRITE and not others_may_write:
        mode = stat.S_IMODE(status.st_mode)
        raise CacheUnsafe(
            f"{what}, {path}, is writable by others (mode {mode:o}); chmod go-w {path}, or"
            f" {WAY_OUT}"
        )
