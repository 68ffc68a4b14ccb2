"""Paths of files that a program names."""

from __future__ import annotations

import os
from pathlib import Path

from otel_recfn.errors import SettingError


def file_path(value: object, name: str = "path") -> Path:
    """The path that a program gave as ``name``.

    Raises:
        SettingError: it is none; a number, say, would be that of an open file.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise SettingError(
            f"{name}={value!r} is not allowed; allowed: the path of a file, a str or a pathlib.Path"
        )
    return Path(path)
