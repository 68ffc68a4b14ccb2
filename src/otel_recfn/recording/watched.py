"""A quick answer to whether anybody observes or traces, and whether ``torch.compile`` traces the
caller.

The native part isn't imported for it: ``otel-recfn doctor`` works without.
"""

from __future__ import annotations

from collections.abc import Hashable

_watchers: set[Hashable] = set()


class Watched:
    """A class attribute, ``now``, that costs a call of a generated wrapper a few nanoseconds."""

    now = False
    """Whether somebody may observe a range.

    Who that is, and in which thread, is asked after that.
    """


class Unwatched:
    """The stand-in for ``Watched`` in compiled code, where nobody observes."""

    now = False


def watch(watcher: Hashable) -> None:
    """Observe for ``watcher`` from now on, until ``unwatch``."""
    _watchers.add(watcher)
    _update_now()


def unwatch(watcher: Hashable) -> None:
    """Observe for ``watcher`` no more. Does nothing if it did not."""
    _watchers.discard(watcher)
    _update_now()


def _update_now() -> None:
    # Without a lock, since whoever writes looks again whether it still holds.
    while Watched.now is not bool(_watchers):
        Watched.now = bool(_watchers)


def is_traced() -> bool:
    """Whether ``torch.compile`` traces the caller; False in code that runs, because ``return_true``
    is traced in place of this.
    """
    return False


def return_true() -> bool:
    """True, which compiled code is given in place of a check."""
    return True
