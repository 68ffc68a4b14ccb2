"""The thread-local state: a thread's own callbacks, whether RecordFunction is enabled, its sampling
and its debug info.

These belong to a thread and not to a contextvars context, as in PyTorch: observers are put on a
thread for a piece of code that runs there, and ``ThreadLocalState`` hands them on. The current span
and the enclosing ``async with record_function`` belong to a task: they are in contextvars, which
asyncio keeps per task.

Callbacks and debug info are one object, which PyTorch hands on to whatever works for the thread:
autograd's workers, ``torch.jit.fork`` and ``at::launch``. PyTorch keeps Python objects in its
thread-local state, by name.

    put ─► PyTorch's thread-local state ─► another thread
        ─► look: that thread's callbacks and debug info are these

Where PyTorch isn't imported, each thread has its own.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from otel_recfn import _native
from otel_recfn.callbacks.callback import Entries, ScopeSampler
from otel_recfn.errors import DebugInfoError
from otel_recfn.model.events import DebugInfoKind as DebugInfoKind
from otel_recfn.model.events import RecordScope
from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import call_at_torch_import
from otel_recfn.pytorch.thread_ids import follow_torch


class PropagatedState(NamedTuple):
    """The callbacks and debug info that a thread hands on."""

    callbacks: Entries = ()
    debug_info: DebugInfo | None = None


NOTHING = PropagatedState()


class ThreadState:
    """The state of one thread, which only that thread reads and writes."""

    __slots__ = (
        "__weakref__",
        "_in_callback",
        "callbacks",
        "generator",
        "is_inherited",
        "is_propagated",
        "propagated",
        "samplers",
        "tracer",
        "version",
    )

    def __init__(self) -> None:
        self.propagated = NOTHING
        self.is_propagated = self.is_inherited = False
        """Whether ``propagated`` is in PyTorch's thread-local state, too; and whether any was that
        another thread put there.
        """
        self.callbacks: Entries = ()
        """The callbacks that its samplers were made of."""
        self._in_callback = False
        self.generator = Random()
        self.samplers: dict[RecordScope, ScopeSampler] = {}
        """The samplers by scope; valid while ``version`` is that of the global callbacks."""
        self.version = -1
        self.tracer: Any = None
        """The graph that generated wrappers record calls into (``tracing/trace.py``); None if
        nothing is traced.
        """

    # As the thread ends, or one of PyTorch's leaves Python, where its work goes on with what it
    # has.
    def __del__(self) -> None:
        if (
            self.is_propagated
            and not self.is_inherited
            and _torch_state is not None
            and _torch_state.get() is self.propagated
        ):
            _torch_state.put(None)

    @property
    def in_callback(self) -> bool:
        """Whether a callback runs now: ranges that it begins reach no callbacks, or it would
        call itself without end.
        """
        return self._in_callback if _torchs is None else bool(_torchs.is_inside())

    @in_callback.setter
    def in_callback(self, inside: bool) -> None:
        if _torchs is None:
            self._in_callback = inside
        else:
            _torchs.set_inside(inside)


_local = threading.local()


def current() -> ThreadState:
    """The calling thread's state."""
    try:
        state: ThreadState = _local.state
    except AttributeError:
        follow_torch()
        state = _local.state = ThreadState()
    return state


class RunningCallback:
    """``with RunningCallback():`` marks this thread as running a callback."""

    __slots__ = ("_outer", "_state")

    def __enter__(self) -> None:
        self._state = current()
        self._outer, self._state.in_callback = self._state.in_callback, True

    def __exit__(self, *_error: object) -> None:
        self._state.in_callback = self._outer


# --- flags that PyTorch's operators see

_torchs: Any = None
"""The library that calls callbacks on PyTorch's operators (``torch_callbacks.py``), once it is
loaded.
"""


def share_torchs_flags(library: Any) -> None:
    """Keep ``ThreadState.in_callback`` in ``library`` from now on, because PyTorch's operators
    call callbacks as well.
    """
    global _torchs
    inside = current().in_callback
    _torchs = library
    library.set_inside(inside)


def is_record_function_enabled() -> bool:
    """Whether this thread may be observed: PyTorch's own switch, where that can be read."""
    return _native.thread_enabled() if _torchs is None else bool(_torchs.is_enabled())


# --- what PyTorch hands on

KEY = "otel_recfn"


class TorchState:
    """A place for one of our objects in PyTorch's thread-local state."""

    def __init__(
        self,
        has: Callable[[str], bool],
        get: Callable[[str], Any],
        stash: Callable[[str, Any], None],
    ) -> None:
        self._has = has
        self._get = get
        self._stash = stash
        self._remove = details.find("carried_remove")
        self._takes_reference = True
        stashed = PropagatedState()
        before = sys.getrefcount(stashed)
        self._stash(KEY, stashed)
        # PyTorch 2.4 takes no reference to what it keeps, but releases one.
        if sys.getrefcount(stashed) == before:
            self._takes_reference = False
            _take_reference(stashed)

    def get(self) -> PropagatedState | None:
        """The object in the calling thread's state."""
        return self._get(KEY) if self._has(KEY) else None

    def put(self, state: PropagatedState | None) -> None:
        """Put an object into the calling thread's state; None removes what is there."""
        if state is None and self._remove is not None:
            # PyTorch takes the GIL for an object as its thread ends, which aborts a process that
            # ends, too.
            if self._has(KEY):
                self._remove(KEY)
            return
        if not self._takes_reference:
            _take_reference(state)
        self._stash(KEY, state)


def _take_reference(stashed: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stashed))


_torch_state: TorchState | None = None
_waits_for_torch = False


def propagated_state() -> PropagatedState:
    """The calling thread's callbacks and debug info: its own, or those of the thread that it
    works for.
    """
    state = current()
    if _torch_state is not None:
        propagated = _torch_state.get()
        if propagated is not state.propagated and (propagated is not None or state.is_propagated):
            state.propagated = propagated or NOTHING
            state.is_propagated = propagated is not None
            state.is_inherited = True
    return state.propagated


def put(propagated: PropagatedState) -> None:
    """Set the calling thread's callbacks and debug info."""
    global _waits_for_torch
    current().propagated = propagated
    if propagated != NOTHING and not _waits_for_torch:
        _waits_for_torch = True
        call_at_torch_import(_propagate_with_torch)
    _propagate()


def torch_propagates() -> bool:
    """Whether PyTorch hands on the state of threads."""
    return _torch_state is not None


def _propagate_with_torch() -> None:
    """Have PyTorch hand on the state of threads: of this one from now on, of others from their
    next change on.
    """
    global _torch_state
    functions = [
        details.find(name) for name in ("propagated_has", "propagated_get", "propagated_put")
    ]
    if None not in functions:
        _torch_state = TorchState(*functions)
        _propagate()


def _propagate() -> None:
    if _torch_state is not None:
        state = current()
        state.is_propagated = state.propagated != NOTHING
        _torch_state.put(state.propagated if state.is_propagated else None)


# --- debug info


class DebugInfo(NamedTuple):
    """The innermost entry of a thread's map from slot to debug info (source:
    ``c10::ThreadLocalDebugInfo``).

        push(PROFILER_STATE, a)                    a
          push(TEST_INFO, t)                       a  t
            push(PROFILER_STATE, b)                b  t      b shadows a
            pop(PROFILER_STATE)                    a  t

    Entries never change: what a thread launched goes on with the map as it was, and neither sees
    what the other pushes or pops.
    """

    kind: DebugInfoKind
    info: Any
    outer: DebugInfo | None
    pushed_in: int = 0
    """``threading.get_ident()`` of the thread that pushed it; 0 in maps of those that inherit
    it.
    """


_profiler_listeners: list[Callable[[Any], None]] = []


def debug_info_get(kind: DebugInfoKind) -> Any:
    """The innermost info of this slot in the calling thread; None if there is none."""
    return _find(current_debug_info(), kind)


def debug_info_push(kind: DebugInfoKind, info: Any) -> None:
    """Put ``info`` into the slot, in front of the others."""
    set_current_debug_info(DebugInfo(kind, info, current_debug_info(), threading.get_ident()))


def debug_info_pop(kind: DebugInfoKind) -> Any:
    """Remove the innermost entry, which must be of this slot, and return its info.

    Raises:
        DebugInfoError: it is of another slot, or there is none.
    """
    innermost = _innermost(kind)
    set_current_debug_info(innermost.outer)
    return innermost.info


def debug_info_peek(kind: DebugInfoKind) -> Any:
    """The info of the innermost entry, which must be of this slot.

    Raises:
        DebugInfoError: it is of another slot, or there is none.
    """
    return _innermost(kind).info


def pushed_here(kind: DebugInfoKind) -> bool:
    """Whether the calling thread pushed the innermost entry, which must be of this slot.

    If not, it was inherited from another thread or task.
    """
    return _innermost(kind).pushed_in == threading.get_ident()


def inherited_info(debug_info: DebugInfo | None) -> DebugInfo | None:
    """The same map for what a thread launches, which pushed none of its entries."""
    entries = []
    while debug_info is not None:
        entries.append(debug_info)
        debug_info = debug_info.outer
    for entry in reversed(entries):
        debug_info = entry._replace(outer=debug_info, pushed_in=0)
    return debug_info


def current_debug_info() -> DebugInfo | None:
    """The calling thread's whole map, for another thread."""
    return propagated_state().debug_info


def set_current_debug_info(debug_info: DebugInfo | None) -> None:
    """Give the calling thread this map."""
    before = propagated_state()
    if debug_info is not before.debug_info:
        put(before._replace(debug_info=debug_info))
    profiler = _find(debug_info, DebugInfoKind.PROFILER_STATE)
    if profiler is not _find(before.debug_info, DebugInfoKind.PROFILER_STATE):
        for listener in _profiler_listeners:
            listener(profiler)


def on_profiler_state(listener: Callable[[Any], None]) -> None:
    """Call ``listener`` with the innermost PROFILER_STATE (or None) in every thread where it
    changes, from now on.
    """
    _profiler_listeners.append(listener)


class DebugInfoGuard:
    """``with DebugInfoGuard(kind, info):`` keeps ``info`` in the slot, and restores the map on
    leaving.

    None does nothing.
    """

    def __init__(self, kind: DebugInfoKind, info: Any) -> None:
        self._kind, self._info = kind, info
        self._outer: list[DebugInfo | None] = []

    def __enter__(self) -> DebugInfoGuard:
        self._outer.append(current_debug_info())
        if self._info is not None:
            debug_info_push(self._kind, self._info)
        return self

    def __exit__(self, *_error: object) -> None:
        set_current_debug_info(self._outer.pop())


def _find(debug_info: DebugInfo | None, kind: DebugInfoKind) -> Any:
    while debug_info is not None:
        if debug_info.kind == kind:
            return debug_info.info
        debug_info = debug_info.outer
    return None


def _innermost(kind: DebugInfoKind) -> DebugInfo:
    innermost = current_debug_info()
    if innermost is None:
        raise DebugInfoError(
            f"no debug info is set in this thread; push one of kind {kind.name} first"
        )
    if innermost.kind != kind:
        raise DebugInfoError(
            f"the innermost debug info is of kind {innermost.kind.name}, not {kind.name}; pop that"
            " one first"
        )
    return innermost
