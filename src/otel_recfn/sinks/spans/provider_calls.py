"""Has a provider's own ``force_flush()`` and ``shutdown()`` deliver what ended before them, as they do for live spans.

The SDK tells nobody that it flushes. So both methods of the provider in use are shadowed by functions that flush what was
recorded, and then call the provider's own. ``remove`` takes them away again. A provider that can't be given attributes stays as
it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from otel_recfn.support.own_thread import OwnThread

SHUTDOWN_SECONDS = 5.0
"""So long a ``shutdown()`` waits for what was recorded; a ``force_flush()`` as long as it says, or as the SDK's own does."""
FLUSH_SECONDS = 30.0


class ProviderCalls:
    """Of one sink. Every method may be called from any thread.

    Args:
        flush: delivers what was recorded, in so many seconds.
    """

    def __init__(self, flush: Callable[[float], object]) -> None:
        self._flush = flush
        self._lock = threading.RLock()  # a signal handler's range may find a provider, too
        self._provider: Any = None
        self._shadows: list[_Shadow] = []

    def watch(self, provider: Any) -> None:
        """Shadow the methods of this provider alone, from now on."""
        with self._lock:
            if provider is self._provider:
                return
            self._remove()
            self._provider = provider
            with suppress(AttributeError, TypeError):  # one with slots, say
                self._shadows.append(_Shadow(provider, "force_flush", lambda *given: self._flush(_seconds(*given))))
                self._shadows.append(_Shadow(provider, "shutdown", lambda *_: self._flush(SHUTDOWN_SECONDS)))

    def remove(self) -> None:
        """Leave the provider as it was found."""
        with self._lock:
            self._remove()

    def after_fork_in_child(self) -> None:
        """The same, where another thread may have held the lock."""
        self._lock = threading.RLock()
        self._remove()

    def _remove(self) -> None:
        for shadow in self._shadows:
            shadow.remove()
        self._provider, self._shadows = None, []


class _Shadow:
    """Stands in place of a method, and calls something first."""

    def __init__(self, provider: Any, name: str, first: Callable[..., object]) -> None:
        self._provider, self._name, self._first = provider, name, first
        self.own = getattr(provider, name)
        self._before: Any = vars(provider).get(name)
        """What the provider had as an attribute of its own; None for nothing."""
        self._removed = False
        setattr(provider, name, self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # In a thread of ours a processor of the program's calls, say; who would drain may wait for that thread.
        if not self._removed and not isinstance(threading.current_thread(), OwnThread):
            with suppress(Exception):  # this is the program's call
                self._first(*arguments, *keywords.values())
        return self.own(*arguments, **keywords)

    def remove(self) -> None:
        """Where somebody else shadows it by now, and still calls this, it only passes the call on."""
        self._removed = True
        if vars(self._provider).get(self._name) is not self:
            return
        before = self._before
        while isinstance(before, _Shadow) and before._removed:
            before = before._before
        if before is None:
            delattr(self._provider, self._name)
        else:
            setattr(self._provider, self._name, before)


def own_method(provider: Any, name: str) -> Callable[..., Any]:
    """The provider's own, for who delivers."""
    method: Callable[..., Any] = getattr(provider, name)
    while isinstance(method, _Shadow):
        method = method.own
    return method


def _seconds(timeout_millis: Any = None, *_: Any) -> float:
    is_number = isinstance(timeout_millis, (int, float))
    return max(0.0, timeout_millis / 1000) if is_number else FLUSH_SECONDS
