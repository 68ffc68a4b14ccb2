"""A map from slot to debug info, one per thread, handed on to the work that the thread launches.

    push(PROFILER_STATE, a)                    a
      push(TEST_INFO, t)                       a  t
        push(PROFILER_STATE, b)                b  t      b shadows a
        pop(PROFILER_STATE)                    a  t

The map is a chain of entries that never change: what a thread launched goes on with the chain as it was, and neither sees what
the other pushes or pops later (source: ``c10::ThreadLocalDebugInfo``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from otel_recfn.callbacks import thread_locals
from otel_recfn.model.errors import DebugInfoError


class DebugInfoKind(IntEnum):
    """The slots."""

    PRODUCER_INFO = 0
    MOBILE_RUNTIME_INFO = 1
    PROFILER_STATE = 2
    INFERENCE_CONTEXT = 3
    PARAM_COMMS_INFO = 4
    TEST_INFO = 5
    TEST_INFO_2 = 6


class DebugInfo(NamedTuple):
    """The innermost entry of a chain."""

    kind: DebugInfoKind
    info: Any
    outer: DebugInfo | None


_profiler_listeners: list[Callable[[Any], None]] = []


def debug_info_get(kind: DebugInfoKind) -> Any:
    """The innermost info of this slot in the calling thread, None where there is none."""
    return _find(current_debug_info(), kind)


def debug_info_push(kind: DebugInfoKind, info: Any) -> None:
    """Put ``info`` into the slot, in front of what is there."""
    set_current_debug_info(DebugInfo(kind, info, current_debug_info()))


def debug_info_pop(kind: DebugInfoKind) -> Any:
    """Take the innermost entry away, which must be of this slot, and return its info.

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


def current_debug_info() -> DebugInfo | None:
    """The calling thread's whole map, to be set elsewhere."""
    info: DebugInfo | None = thread_locals.look().debug_info
    return info


def set_current_debug_info(debug_info: DebugInfo | None) -> None:
    """Make this the calling thread's map."""
    state = thread_locals.look()
    before = state.debug_info
    if debug_info is not before:
        thread_locals.put(state._replace(debug_info=debug_info))
    profiler = _find(debug_info, DebugInfoKind.PROFILER_STATE)
    if profiler is not _find(before, DebugInfoKind.PROFILER_STATE):
        for listener in _profiler_listeners:
            listener(profiler)


def on_profiler_state(listener: Callable[[Any], None]) -> None:
    """Call ``listener`` with the innermost PROFILER_STATE (or None) in every thread where that changes, from now on."""
    _profiler_listeners.append(listener)


class DebugInfoGuard:
    """``with DebugInfoGuard(kind, info):`` keeps ``info`` in the slot; leaving restores the map. None as info does nothing."""

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
        raise DebugInfoError(f"no debug info is set in this thread; push one of kind {kind.name} first")
    if innermost.kind != kind:
        raise DebugInfoError(f"the innermost debug info is of kind {innermost.kind.name}, not {kind.name}; pop that one first")
    return innermost
