"""What belongs to a thread: its own callbacks, whether RecordFunction is enabled, and its sampling.

These, and debug info (``debug_info.py``), belong to a thread and not to a contextvars context, as in PyTorch: observers are put
on a thread for a piece of code that runs there, and ``ThreadLocalState`` hands them on. The current span and the enclosing
``async with record_function`` belong to a task: they are in contextvars, which asyncio keeps per task.
"""

from __future__ import annotations

import threading
from random import Random
from typing import Any, Protocol

from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.callback_entries import Entries
from otel_recfn.runtime.sampling import ScopeSampler

STALE = -1
"""A version that the list of global callbacks never has."""


class TorchsFlags(Protocol):
    """What PyTorch's operators see of the calling thread."""

    def is_inside(self) -> bool:
        """Whether it runs a callback."""

    def set_inside(self, inside: bool, /) -> bool:
        """Say so; returns what was so before."""

    def is_enabled(self) -> bool:
        """Whether RecordFunction is on in it."""


_torchs: TorchsFlags | None = None


def share_torchs_flags(flags: TorchsFlags) -> None:
    """Keep ``ThreadState.in_callback`` in ``flags`` from now on, because PyTorch's operators call callbacks as well."""
    global _torchs
    inside = current().in_callback
    _torchs = flags
    flags.set_inside(inside)


def torchs_switch() -> bool | None:
    """PyTorch's switch of the calling thread; None where it isn't known here."""
    return _torchs.is_enabled() if _torchs is not None else None


class ThreadState:
    """One thread's. Only that thread reads and writes it."""

    __slots__ = ("__weakref__", "_in_callback", "callbacks", "generator", "samplers", "tracer", "version")

    def __init__(self) -> None:
        self.callbacks: Entries = ()
        """Those that its samplers were made of, in the order of their handles."""
        self._in_callback = False
        self.generator = Random()
        self.samplers: dict[RecordScope, ScopeSampler] = {}
        """By scope; valid while ``version`` is that of the global callbacks."""
        self.version = STALE
        self.tracer: Any = None
        """What generated wrappers record calls into (``tracing/tracer.py``); None where nothing is traced."""

    @property
    def in_callback(self) -> bool:
        """A callback runs now: ranges that it begins reach no callbacks, or it would call itself without end."""
        return self._in_callback if _torchs is None else _torchs.is_inside()

    @in_callback.setter
    def in_callback(self, inside: bool) -> None:
        if _torchs is None:
            self._in_callback = inside
        else:
            _torchs.set_inside(inside)


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
