"""A thread's callbacks and debug info, as one object that others may hand on to whatever works for the thread.

    install ─► put ─► PyTorch's thread-local state ─► another thread ─► look: that thread's callbacks and debug info are these

Where nobody hands them on, each thread has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from otel_recfn.runtime.callback_entries import Entries


class Carried(NamedTuple):
    """What a thread has."""

    callbacks: Entries = ()
    debug_info: Any = None


NOTHING = Carried()


class Carrier(Protocol):
    """Keeps one object per thread, and gives it to what works for the thread."""

    def get(self) -> Carried | None:
        """What is kept in the calling thread."""

    def put(self, state: Carried | None) -> None:
        """Keep it there."""


class _OfThread(threading.local):
    state: Carried = NOTHING
    is_carried = False


_own = _OfThread()
_carrier: Carrier | None = None
_on_first_use: Callable[[], None] | None = None


def look() -> Carried:
    """What the calling thread has now: of its own, or because it works for another one."""
    if _carrier is None:
        return _own.state
    carried = _carrier.get()
    if carried is not _own.state and (carried is not None or _own.is_carried):
        _own.state, _own.is_carried = carried or NOTHING, carried is not None
    return _own.state


def put(state: Carried) -> None:
    """Make it the calling thread's."""
    global _on_first_use
    _own.state = state
    wanted = state.callbacks or state.debug_info is not None
    if wanted and _on_first_use is not None:
        first, _on_first_use = _on_first_use, None
        first()
    _hand_over()


def carry_with(carrier: Carrier | None) -> None:
    """Have ``carrier`` hand on what threads have, this one's from now on; others' from their next change on."""
    global _carrier
    _carrier = carrier
    _hand_over()


def is_handed_on() -> bool:
    """Whether a thread may work with another one's state."""
    return _carrier is not None


def on_first_use(call: Callable[[], None]) -> None:
    """Call it when a thread has something that could be handed on, once."""
    global _on_first_use
    _on_first_use = call


def _hand_over() -> None:
    if _carrier is None:
        return
    state = _own.state
    _own.is_carried = bool(state.callbacks) or state.debug_info is not None
    _carrier.put(state if _own.is_carried else None)
