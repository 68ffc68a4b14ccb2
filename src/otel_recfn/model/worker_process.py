"""What a process works for that another one has begun."""

from __future__ import annotations

from typing import NamedTuple


class WorkerProcess(NamedTuple):
    """A worker process."""

    name: str
    """What its work is called."""
    of_one_caller: bool
    """It lives for what it was begun in alone; else for others, too, which come later."""
