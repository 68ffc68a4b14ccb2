"""Files with names, shapes and stacks of a program, which are nobody else's."""

from __future__ import annotations

import os


def for_this_user(path: str, flags: int) -> int:
    """Open a file, as ``open(path, "w", opener=for_this_user)``: a new one is for this user
    alone.
    """
    return os.open(path, flags, 0o600)
