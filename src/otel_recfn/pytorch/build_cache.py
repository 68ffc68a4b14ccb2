"""Finished builds in the private cache: found by their key, loaded only if they are whole.

A library's name ends with a checksum of its content, so that the two can't be out of step. A file that was cut short or filled
with zeros, by a full disk, a crash or a copy, would end the process by a signal while it is loaded. So it is on the disk before
it gets its name, and compared with the checksum before each use.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from otel_recfn.pytorch import private_cache
from otel_recfn.support.own_file import FileInUseError, OwnFile

log = logging.getLogger("otel_recfn")

KEPT_BUILDS = 5
CHECKSUM_DIGITS = 32
UNFINISHED = "building-"
LOCK_LOOK_SECONDS = 0.05


def find(cache: Path, build: str) -> Path | None:
    """The library of this name and key, checked, ready to load.

    Raises:
        CacheUnsafe: somebody else could have written it.
    """
    for path in _of(cache, build):
        private_cache.check_file(path)
        if not _is_whole(path):
            log.warning("the cached %s is damaged and is not loaded; it is built again", path)
            continue
        with contextlib.suppress(OSError):  # another user's; only the order of pruning depends on it
            os.utime(path)
        return path
    return None


def keep(output: Path, cache: Path, build: str) -> Path:
    """Move a finished library into the cache, in place of earlier ones of its key; gives its path there."""
    output.chmod(0o755)  # the compiler follows the umask, which may let the group write
    target = cache / f"{build}-{_checksum(output)}.so"
    _sync(output)
    os.replace(output, target)
    with contextlib.suppress(OSError):  # some file systems write no directories out; a damaged build is found by its checksum
        _sync(cache)
    for path in _of(cache, build):
        if path != target:
            path.unlink(missing_ok=True)
    private_cache.check_file(target)
    return target


def prune(cache: Path, library: str) -> None:
    """Keep the builds that were used last; one that another process has loaded stays loaded there."""
    with contextlib.suppress(OSError):  # another process prunes, too, or they are another user's; what is left does no harm
        built = sorted(cache.glob(f"{library}-*.so"), key=lambda path: path.lstat().st_mtime_ns, reverse=True)
        for path in built[KEPT_BUILDS:]:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def workshop(cache: Path, wait_s: float) -> Iterator[Path]:
    """A directory to compile in, gone afterwards. Several processes of one training run start at once: one has it, the others
    wait, and find what it has built. After ``wait_s`` seconds they go ahead: compiling twice is harmless."""
    lock = OwnFile(cache / "lock", os.O_CREAT)
    try:
        if _locked(lock, wait_s):
            _remove_unfinished(cache)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=cache) as directory:
            yield Path(directory)
    finally:
        lock.unlock()  # at once, even if a forked child still holds the descriptor
        lock.close()


def _locked(lock: OwnFile, wait_s: float) -> bool:
    """Whether nobody else compiles, as far as is known: there are file systems without locks."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return lock.lock()
        except FileInUseError:
            if time.monotonic() >= deadline:
                log.warning("somebody has kept the cache's lock for %.0f s; building without it", wait_s)
                return False
            time.sleep(LOCK_LOOK_SECONDS)


def _remove_unfinished(cache: Path) -> None:
    """What killed compilers left."""
    for path in cache.glob(f"{UNFINISHED}*"):
        if not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _of(cache: Path, build: str) -> list[Path]:
    return sorted(cache.glob(f"{build}-{'[0-9a-f]' * CHECKSUM_DIGITS}.so"))


def _is_whole(path: Path) -> bool:
    try:
        return path.stem.endswith(f"-{_checksum(path)}")
    except OSError:  # a part of it can't be read
        return False


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:CHECKSUM_DIGITS]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
