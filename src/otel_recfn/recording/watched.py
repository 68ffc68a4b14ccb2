"""Whether anybody observes or traces in this process, as one attribute that generated wrappers read before each call."""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

Watching: TypeAlias = "weakref.ref[Any]"
_watchers: set[Watching] = set()
"""A recorder may be forgotten without having been stopped."""


class Watched:
    """Read ``now``: a class attribute costs a call of a wrapper a few nanoseconds."""

    now = False
    """True where somebody may want to know of a range. Who that is, and in which thread, is asked after that."""


class Unwatched:
    """Stands for ``Watched`` in compiled code, where nobody is told of ranges."""

    now = False


class Watcher:
    """Who observes, where no other object stands for it."""


def watch(watcher: object) -> Watching:
    """``watcher`` observes from now on, for as long as it exists. Returns what ``unwatch`` is to be given."""
    watching = weakref.ref(watcher, unwatch)
    _watchers.add(watching)
    _settle()
    return watching


def unwatch(watching: Watching | None) -> None:
    """It does no more; nothing where it has not been told of."""
    if watching is not None:
        _watchers.discard(watching)
        _settle()


def _settle() -> None:
    # Without a lock, since a collection of garbage may come here anywhere: whoever writes looks again whether it is still so.
    while Watched.now is not bool(_watchers):
        Watched.now = bool(_watchers)
