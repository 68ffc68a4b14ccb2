"""What belongs to a thread: its own callbacks, whether RecordFunction is enabled, its sampling and its debug info.

A thread, and not a contextvars context, owns these, because that is what they say in PyTorch, whose C++ threads read them too:
observers are put on a thread for a piece of code that runs there, and ``ThreadLocalState`` hands them on. What belongs to a
task, the current span and the enclosing ``async with record_function``, lives in contextvars, which asyncio keeps per task.
"""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_recfn.model.scope import RecordScope
    from otel_recfn.runtime.callbacks import CallbackEntry
    from otel_recfn.runtime.debug_info import DebugInfo
    from otel_recfn.runtime.sampling import ScopeSampler

STALE = -1
"""A version that the list of global callbacks never has."""


class ThreadState:
    """One thread's. Only that thread writes it."""

    __slots__ = ("__weakref__", "callbacks", "debug_info", "enabled", "generator", "in_callback", "samplers", "version")

    def __init__(self) -> None:
        self.callbacks: tuple[CallbackEntry, ...] = ()
        """In the order of their handles."""
        self.enabled = True
        self.in_callback = False
        """A callback runs now: ranges that it begins reach no callbacks, or it would call itself without end."""
        self.debug_info: DebugInfo | None = None
        self.generator = Random()
        self.samplers: dict[RecordScope, ScopeSampler] = {}
        """By scope; valid while ``version`` is that of the global callbacks."""
        self.version = STALE


class RunningCallback:
    """``with RunningCallback():`` says that this thread runs a callback now."""

    __slots__ = ("_outer", "_state")

    def __enter__(self) -> None:
        self._state = current()
        self._outer, self._state.in_callback = self._state.in_callback, True

    def __exit__(self, *_error: object) -> None:
        self._state.in_callback = self._outer


_local = threading.local()


def current() -> ThreadState:
    """The calling thread's state."""
    try:
        state: ThreadState = _local.state
    except AttributeError:
        state = _local.state = ThreadState()
    return state
