"""What belongs to a thread: its own callbacks, whether RecordFunction is enabled, its sampling and its debug info.

These belong to a thread and not to a contextvars context, as in PyTorch: observers are put on a thread for a piece of code that
runs there, and ``ThreadLocalState`` hands them on. The current span and the enclosing ``async with record_function`` belong to
a task: they are in contextvars, which asyncio keeps per task.

Callbacks and debug info are one object, which PyTorch hands on to whatever works for the thread: autograd's workers,
``torch.jit.fork`` and ``at::launch``. PyTorch keeps Python objects in its thread-local state, by name.

    put ─► PyTorch's thread-local state ─► another thread ─► look: that thread's callbacks and debug info are these

Where PyTorch isn't imported, each thread has its own.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from random import Random
from typing import Any, NamedTuple

from otel_recfn.callbacks.callback import Entries
from otel_recfn.callbacks.sampling import ScopeSampler
from otel_recfn.model.events import RecordScope
from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import when_torch_is_imported
from otel_recfn.recording.recorder import recorder

STALE = -1
"""A version that the list of global callbacks never has."""


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
        """What generated wrappers record calls into (``tracing/trace.py``); None where nothing is traced."""

    @property
    def in_callback(self) -> bool:
        """A callback runs now: ranges that it begins reach no callbacks, or it would call itself without end."""
        return self._in_callback if _torchs is None else bool(_torchs.is_inside())

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


# --- flags of the thread that PyTorch's operators see

_torchs: Any = None
"""The library that calls callbacks on PyTorch's operators (``library.py``), once it is loaded."""


def share_torchs_flags(library: Any) -> None:
    """Keep ``ThreadState.in_callback`` in ``library`` from now on, because PyTorch's operators call callbacks as well."""
    global _torchs
    inside = current().in_callback
    _torchs = library
    library.set_inside(inside)


def is_record_function_enabled() -> bool:
    """Whether anybody observes this thread: PyTorch's own switch, where that can be read."""
    return recorder.thread_enabled() if _torchs is None else bool(_torchs.is_enabled())


# --- what PyTorch hands on


class Carried(NamedTuple):
    """What a thread has."""

    callbacks: Entries = ()
    debug_info: Any = None


NOTHING = Carried()
KEY = "otel_recfn"


class TorchState:
    """The calling thread's state of PyTorch, as a place for one of our objects."""

    def __init__(self, torch_c: Any) -> None:
        self._has, self._get, self._stash = torch_c._is_key_in_tls, torch_c._get_obj_in_tls, torch_c._stash_obj_in_tls
        self._remove = getattr(torch_c, "_remove_obj_from_tls", None)
        self._takes_reference = True
        kept = Carried()
        before = sys.getrefcount(kept)
        self._stash(KEY, kept)
        if sys.getrefcount(kept) == before:  # PyTorch 2.4 takes none to what it keeps, and gives one back all the same
            self._takes_reference = False
            _take_reference(kept)

    def get(self) -> Carried | None:
        """What is kept in the calling thread."""
        return self._get(KEY) if self._has(KEY) else None

    def put(self, state: Carried | None) -> None:
        """Keep it there."""
        if state is not None or self._remove is None:
            if not self._takes_reference:
                _take_reference(state)
            self._stash(KEY, state)
        elif self._has(KEY):
            self._remove(KEY)


def _take_reference(kept: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


class _OfThread(threading.local):
    state: Carried = NOTHING
    is_carried = False


_own = _OfThread()
_torch_state: TorchState | None = None
_waits_for_torch = False


def look() -> Carried:
    """What the calling thread has now: of its own, or because it works for another one."""
    if _torch_state is None:
        return _own.state
    carried = _torch_state.get()
    if carried is not _own.state and (carried is not None or _own.is_carried):
        _own.state, _own.is_carried = carried or NOTHING, carried is not None
    return _own.state


def put(state: Carried) -> None:
    """Make it the calling thread's."""
    global _waits_for_torch
    _own.state = state
    if not _waits_for_torch and (state.callbacks or state.debug_info is not None):
        _waits_for_torch = True
        when_torch_is_imported(_carry_with_torch)
    _hand_over()


def is_handed_on() -> bool:
    """Whether a thread may work with another one's state."""
    return _torch_state is not None


def _carry_with_torch() -> None:
    """Have PyTorch hand on what threads have, this one's from now on; others' from their next change on."""
    global _torch_state
    if details.find("carries") is not None:
        _torch_state = TorchState(sys.modules["torch"]._C)
        _hand_over()


def _hand_over() -> None:
    if _torch_state is None:
        return
    state = _own.state
    _own.is_carried = bool(state.callbacks) or state.debug_info is not None
    _torch_state.put(state if _own.is_carried else None)
