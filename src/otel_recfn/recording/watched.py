"""What code asks before it tells us anything: whether anybody observes or traces, and whether ``torch.compile`` traces it.

The native part isn't imported for it: ``otel-recfn doctor`` works without.
"""

from __future__ import annotations

from collections.abc import Hashable

_watchers: set[Hashable] = set()


class Watched:
    """Read ``now``: a class attribute costs a call of a generated wrapper a few nanoseconds."""

    now = False
    """True where somebody may want to know of a range. Who that is, and in which thread, is asked after that."""


class Unwatched:
    """Stands for ``Watched`` in compiled code, where nobody is told of ranges."""

    now = False


def watch(watcher: Hashable) -> None:
    """``watcher`` observes from now on, until ``unwatch``."""
    _watchers.add(watcher)
    _settle()


def unwatch(watcher: Hashable) -> None:
    """It does no more; nothing where it did not."""
    _watchers.discard(watcher)
    _settle()


def _settle() -> None:
    while Watched.now is not bool(_watchers):  # without a lock: whoever writes looks again whether it is still so
        Watched.now = bool(_watchers)


def is_traced() -> bool:
    """Whether ``torch.compile`` traces the caller: never in code that runs, as it traces ``yes`` in place of this."""
    return False


def yes() -> bool:
    """The answer of a function that is only asked so by compiled code."""
    return True
