"""Functions and methods during which a lock is taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from otel_recfn.support.fork_safe_lock import ForkSafeLock


class HasLock(Protocol):
    """An object with a lock over what it holds."""

    _lock: ForkSafeLock


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=HasLock)


def locked(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """While it runs, the lock of its object is taken."""

    @wraps(method)
    def with_lock(self: Any, /, *args: Any, **keywords: Any) -> T:
        with self._lock:
            return method(self, *args, **keywords)

    return with_lock


def locked_by(lock: ForkSafeLock) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """While the function runs, this lock is taken."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def with_lock(*args: P.args, **keywords: P.kwargs) -> T:
            with lock:
                return function(*args, **keywords)

        return with_lock

    return decorate
