"""Has a provider's own ``force_flush()`` and ``shutdown()`` deliver what ended before them, as they do for live spans.

The SDK tells nobody that it flushes. So both methods of the provider in use are shadowed by functions that flush what was
recorded, and then call the provider's own, with what is left of the time. ``remove`` takes them away again. A provider that
can't be given attributes stays as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from otel_recfn.support.own_thread import OwnThread
from otel_recfn.support.signal_handlers import raised_by_signal_handler

SHUTDOWN_SECONDS = 5.0
"""So long a ``shutdown()`` waits for what was recorded."""
LONGEST_MILLIS = 1e12
"""Some 30 years, which stand for whatever is longer."""
FLUSH_MILLIS = 30_000
"""As the SDK's own, where the program says nothing."""


class ProviderCalls:
    """Of one sink. Every method may be called from any thread.

    Args:
        flush: delivers what was recorded, in so many seconds; False where they were not enough.
    """

    def __init__(self, flush: Callable[[float], bool]) -> None:
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
                self._shadows.append(_Shadow(provider, "force_flush", self._force_flush))
                self._shadows.append(_Shadow(provider, "shutdown", self._shutdown))

    def _force_flush(self, own: Callable[..., Any], timeout_millis: Any = FLUSH_MILLIS, *rest: Any, **more: Any) -> Any:
        """False where the time was not enough for ours, too."""
        began = time.monotonic()
        is_number = isinstance(timeout_millis, (int, float))
        flushed = self._flushed(max(0.0, min(timeout_millis, LONGEST_MILLIS) / 1000) if is_number else FLUSH_MILLIS / 1000)
        took = int(1000 * (time.monotonic() - began))
        answer = own(max(0, timeout_millis - took) if is_number else timeout_millis, *rest, **more)
        return answer if flushed else False

    def _shutdown(self, own: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        self._flushed(SHUTDOWN_SECONDS)
        return own(*arguments, **keywords)

    def _flushed(self, timeout_s: float) -> bool:
        try:
            return self._flush(timeout_s)
        except Exception as error:  # this is the program's call
            if raised_by_signal_handler(error):
                raise
            return False

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
    """Stands in place of a method: what is called instead is given that method first."""

    def __init__(self, provider: Any, name: str, instead: Callable[..., Any]) -> None:
        self._provider, self._name, self._instead = provider, name, instead
        self.own = getattr(provider, name)
        self._before: Any = vars(provider).get(name)
        """What the provider had as an attribute of its own; None for nothing."""
        self._removed = False
        setattr(provider, name, self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # In a thread of ours a processor of the program's calls, say; who would drain may wait for that thread.
        if self._removed or isinstance(threading.current_thread(), OwnThread):
            return self.own(*arguments, **keywords)
        return self._instead(self.own, *arguments, **keywords)

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
