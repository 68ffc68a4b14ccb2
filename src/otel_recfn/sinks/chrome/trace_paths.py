"""The names of trace files: which file a process writes.

    the launched program   trace.json          if another program writes that: trace.pid123.json
    a rank                 trace.rank0.json    started again: trace.rank0.restart1.json
    a child, a worker      trace.pid123.json   of a rank: trace.rank0.pid123.json

So processes that run one after another don't replace each other's files. A name in use gets a
number: -2, -3, ...
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from otel_recfn.errors import SettingError
from otel_recfn.support.paths import file_path
from otel_recfn.support.processes import addition

SUFFIXES = (".json.gz", ".json")
MAX_NUMBERED = 1000


class TracePaths:
    """The names beside a path that the program asks for.

    Args:
        path: ends in ``.json`` or ``.json.gz``.

    Raises:
        SettingError: the suffix is another one, or the working directory was removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        asked = file_path(path, "chrome_trace")
        self._suffix = checked_suffix(asked)
        try:
            # So that a child that changes its directory writes beside its parent.
            self.asked = asked.absolute()
        except OSError as error:
            raise SettingError(
                f"chrome_trace={str(path)!r}: the working directory was removed; give an absolute"
                " path"
            ) from error

    def process_path(self, *, is_child: bool = False) -> Path:
        """The name for this process, which is a rank or a child, if it is one.

        ``is_child``: it is known to be one.
        """
        return self._with_suffix(addition(is_child))

    def numbered_paths(self) -> Iterator[Path]:
        """The names that this process may use while its own is being written."""
        own = addition()
        numbered_name = own if ".pid" in own else f"{own}.pid{os.getpid()}"
        yield self._with_suffix(numbered_name)
        for number in range(2, MAX_NUMBERED):
            yield self._with_suffix(f"{numbered_name}-{number}")

    def _with_suffix(self, added: str) -> Path:
        name = self.asked.name.removesuffix(self._suffix)
        return self.asked.with_name(f"{name}{added}{self._suffix}")


def checked_suffix(path: Path) -> str:
    """The suffix of a trace's path.

    Raises:
        SettingError: it is another one than those of traces.
    """
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    name = path.stem.lstrip(".") or "trace"
    raise SettingError(
        f"chrome_trace={str(path)!r} is no name that ends in .json or .json.gz; name it"
        f" {name}.json.gz"
    )


def cannot_write(path: Path, error: OSError) -> str:
    """The reason why a file can't be written, and the way out."""
    named = f"chrome_trace={str(path)!r}"
    folder = Path(os.path.realpath(path)).parent
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not folder.is_dir():
        return f"{named}: there is no directory {str(folder)!r}; create it or choose another path"
    return f"{named} cannot be written ({error.strerror}); choose a path that this user can write"
